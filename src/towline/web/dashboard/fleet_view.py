"""The fleet as a board: a column for each state, with as many cards as one can look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from towline.core.budgets import exhausted
from towline.core.classify import STRATEGY_OF
from towline.core.lifecycle import STATES, TERMINAL, WAITING_FOR, State
from towline.core.snapshot import PullRef
from towline.core.staleness import is_stale
from towline.core.sweep_policy import TowPolicy
from towline.ports.pulls import PullRecord
from towline.store.dashboard import SqlInsights
from towline.web.dashboard.pages import duration, words
from towline.web.fleet import Wanted
from towline.web.pull_models import current_diagnosis
from towline.web.tow_access import Tow

CARDS_A_COLUMN: Final = 8
CARDS_A_PAGE: Final = 60
MOST_COUNTED: Final = 10_000
MOST_REPOS: Final = 200
_LONGEST: Final = 160

ORDER: Final[tuple[State, ...]] = (
    "NEEDS_INTERVENTION",
    "CHECKS_FAILED",
    "POLICY_FAILED",
    "CREATED",
    "CHECKS_RUNNING",
    "CHECKS_PASSED",
    "POLICY_EVALUATING",
    "POLICY_PASSED",
    "APPROVED",
    "MERGING",
    "MERGED",
    "CLOSED",
)
"""What somebody should look at comes first."""
RULES: Final = (
    "merge_conflict",
    "branch_behind",
    "checks_transient",
    "checks_persistent",
    "policy_bot_stale",
    "policy_failed_sod",
    "policy_failed_other",
    "approver_bot_stale",
    "automerge_bot_stale",
    "within_threshold",
    "fallthrough",
)


class Card(NamedTuple):
    ref: PullRef
    title: str
    author: str
    state: State
    substatus: str | None
    since_us: int
    stale: bool
    line: str
    """The diagnosis, or what it waits for."""
    rule: str
    budget: str
    busy: str
    """The remedy that is under way."""
    version: int


class Column(NamedTuple):
    state: State
    total: int
    """All that are in this state, shown or not."""
    overdue: int
    cards: Sequence[Card]
    more: int


class Board(NamedTuple):
    columns: Sequence[Column]
    counts: Mapping[State, int]
    overdue: Mapping[State, int]

    @property
    def alive(self) -> int:
        return sum(count for state, count in self.counts.items() if state not in TERMINAL)

    @property
    def stale(self) -> int:
        return sum(self.overdue.values())

    @property
    def stale_capped(self) -> bool:
        """Whether there are more than were counted."""
        return any(count >= MOST_COUNTED for count in self.overdue.values())


async def counts_of(insights: SqlInsights, tow: Tow) -> Board:
    """How many there are, without cards."""
    counts = await tow.pulls.census()
    overdue = await insights.overdue(tow.policy.shortest_thresholds(), MOST_COUNTED)
    return Board((), counts, overdue)


async def board_of(insights: SqlInsights, tow: Tow, now_us: int) -> Board:
    """All of it: counts, and the cards of each column that are there longest."""
    _, counts, overdue = await counts_of(insights, tow)
    found = await insights.columns(CARDS_A_COLUMN)
    columns = [
        Column(
            state,
            counts[state],
            overdue.get(state, 0),
            [card_of(one, tow.policy, now_us) for one in found[state]],
            max(0, counts[state] - len(found[state])),
        )
        for state in ORDER
        if found[state]
    ]
    return Board(columns, counts, overdue)


def columns_of(records: Iterable[PullRecord], policy: TowPolicy, now_us: int) -> list[Column]:
    """Those that a filter found, by state."""
    cards: dict[State, list[Card]] = {state: [] for state in ORDER}
    for record in records:
        cards[record.state].append(card_of(record, policy, now_us))
    return [
        Column(state, len(found), sum(card.stale for card in found), found, 0)
        for state, found in cards.items()
        if found
    ]


def card_of(record: PullRecord, policy: TowPolicy, now_us: int) -> Card:
    own = policy.of(record.ref.repo)
    diagnosis = current_diagnosis(record)
    return Card(
        record.ref,
        _cut(record.title),
        record.author or "",
        record.state,
        record.substatus,
        record.since_us,
        is_stale(record.state, record.since_us / 1e6, now_us / 1e6, own.thresholds),
        _line(record, diagnosis),
        str((diagnosis or {}).get("rule") or ""),
        _budget(record, diagnosis, policy),
        record.intent.strategy if record.intent is not None else "",
        record.version,
    )


def _line(record: PullRecord, diagnosis: Mapping[str, object] | None) -> str:
    reason = str((diagnosis or {}).get("reason") or "")
    if reason:
        return _cut(reason[:1].upper() + reason[1:])
    if record.state in TERMINAL:
        tries = sum(record.lifetime.values())
        helped = f", with {tries} remed{'y' if tries == 1 else 'ies'}" if tries else ""
        took = duration((record.since_us - record.created_us) / 1e6)
        return f"{words(record.state)} after {took}{helped}"
    return f"Waits for {WAITING_FOR[record.state]}"


def _budget(record: PullRecord, diagnosis: Mapping[str, object] | None, policy: TowPolicy) -> str:
    """What is left of the remedy that comes next; of all, where none is known to."""
    if record.state in TERMINAL:
        return ""
    budgets = policy.of(record.ref.repo).budgets
    left = {
        strategy: 0
        if exhausted(strategy, record.counts, record.lifetime, budgets)
        else max(0, most - record.counts.get(strategy, 0))
        for strategy, most in budgets.items()
    }
    action = (diagnosis or {}).get("next_action")
    strategy = next((found for name, found in STRATEGY_OF.items() if name == action), None)
    if strategy is None:
        return f"{sum(left.values())} of {sum(budgets.values())} tries left"
    return f"{words(strategy)}: {left[strategy]} of {budgets[strategy]} left"


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"


def wanted_from(given: Mapping[str, str | None]) -> Wanted:
    """What the address asks for; a value that cannot be is left out."""
    state = next((one for one in STATES if one == given.get("state")), None)
    stale = {"yes": True, "no": False}.get(given.get("stale") or "")
    return Wanted(given.get("repo"), state, stale, given.get("rule"), given.get("search"))
