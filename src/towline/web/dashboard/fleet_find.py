"""A page of what a filter finds. The store finds what may fit; what it cannot know is told here."""

from __future__ import annotations

from typing import Final, NamedTuple

from towline.core.lifecycle import TERMINAL, State
from towline.core.staleness import is_stale
from towline.core.sweep_policy import TowPolicy
from towline.ports.dashboard import Place, Sought
from towline.ports.pulls import PullRecord
from towline.store.dashboard import SqlInsights
from towline.web.dashboard.fleet_view import CARDS_A_PAGE, ORDER
from towline.web.fleet import BadCursor, Wanted, rule_of

_MORE_ROUNDS: Final = 4
_AT_A_TIME: Final = 200
_LONGEST_NUMBER: Final = 18
_NEVER_US: Final = 0


class Page(NamedTuple):
    records: list[PullRecord]
    following: str | None
    """The cursor of the page after; None on the last."""


async def page_of(
    insights: SqlInsights, policy: TowPolicy, wanted: Wanted, cursor: str, now_us: int
) -> Page:
    """Short where much may fit and little does."""
    after = place_in(cursor) if cursor else None
    sought = sought_by(wanted, policy, now_us)
    found: list[PullRecord] = []
    for at_once in (CARDS_A_PAGE + 1, *[_AT_A_TIME] * _MORE_ROUNDS):
        rows = await insights.find(sought, ORDER, after, at_once)
        for row in rows:
            if len(found) == CARDS_A_PAGE:
                return Page(found, _cursor(after))
            after = place_of(row)
            if _fits(row, wanted, policy, now_us):
                found.append(row)
        if len(rows) < at_once:
            return Page(found, None)
    return Page(found, _cursor(after))


def sought_by(wanted: Wanted, policy: TowPolicy, now_us: int) -> Sought:
    sought = Sought(wanted.repo, wanted.state, wanted.rule, wanted.search)
    if wanted.stale is None:
        return sought
    if wanted.stale:
        limits = policy.shortest_thresholds()
        since = {state: now_us - round(seconds * 1e6) for state, seconds in limits.items()}
        return sought._replace(stale_since_us=since)
    return sought._replace(in_time_since_us=_in_time_since(policy, now_us))


def _in_time_since(policy: TowPolicy, now_us: int) -> dict[State, int]:
    """Whoever is in time anywhere is so by these; a state that somewhere has no limit, always."""
    policies = (policy.general, *policy.repos.values())
    since: dict[State, int] = {}
    for state in policy.shortest_thresholds():
        limits = [one.thresholds.get(state) for one in policies]
        given = [limit for limit in limits if limit is not None]
        everywhere = len(given) == len(limits)
        since[state] = now_us - round(max(given) * 1e6) if everywhere else _NEVER_US
    return since


def _fits(record: PullRecord, wanted: Wanted, policy: TowPolicy, now_us: int) -> bool:
    """A diagnosis may be of a state before, and a repository may have times of its own."""
    if wanted.rule is not None and rule_of(record) != wanted.rule:
        return False
    if wanted.stale is None:
        return True
    limits = policy.of(record.ref.repo).thresholds
    stale = is_stale(record.state, record.since_us / 1e6, now_us / 1e6, limits)
    return stale == wanted.stale


def place_of(record: PullRecord) -> Place:
    key = -record.since_us if record.state in TERMINAL else record.since_us
    return Place(ORDER.index(record.state), key, record.ref.repo, record.ref.number)


def _cursor(after: Place | None) -> str | None:
    return None if after is None else f"{after.rank} {after.key} {after.number} {after.repo}"


def place_in(cursor: str) -> Place:
    rank, key, number, repo = (cursor.split(" ", 3) + [""] * 4)[:4]
    if not repo or not all(map(_is_number, (rank, key.removeprefix("-"), number))):
        raise BadCursor("the cursor is that of the page before, as its link has it")
    return Place(int(rank), int(key), repo, int(number))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
