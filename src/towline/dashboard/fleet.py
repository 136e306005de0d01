"""The fleet, one pull request, the health of it all, and what is ordered from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, get_args

from starlette.responses import Response

from towline.commands.http import give_order
from towline.dashboard.health import SPANS, health_of, span_of
from towline.dashboard.page_request import Form, Visit, action, page, went
from towline.dashboard.pull import pull_page
from towline.dashboard.queries import Place, Sought, SqlInsights
from towline.dashboard.render import HOME, duration, pull_path, words
from towline.forges.snapshot import PullRef
from towline.pulls.budgets import exhausted
from towline.pulls.fleet import BadCursor, Wanted, full_name, rule_of, story_of
from towline.pulls.http_models import LONGEST_NAME, ResetBody, current_diagnosis
from towline.pulls.lifecycle import STATES, TERMINAL, WAITING_FOR, State
from towline.pulls.model import PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.staleness import is_stale
from towline.reconciler.access import Tow
from towline.reconciler.http import reset_breakers
from towline.reconciler.rules import STRATEGY_OF, RuleName
from towline_once.asgi.messages import Problem

# ------------------------------------------------------------------ the board
# The fleet as a board: a column for each state, with as many cards as one can look at.

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


# ------------------------------------------------------------------ the list
# A page of what a filter finds. The store finds what may fit; what it cannot know is told here.

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
    """These make a pull request in time anywhere; a state without a limit somewhere always is."""
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


# ------------------------------------------------------------------ routes

_FILTERS: Final = ("repo", "state", "stale", "rule", "search")
_MOST_SKIPPED: Final = 10_000


@page
async def fleet(visit: Visit) -> Response:
    """The board; with a filter, what it finds, page by page."""
    given = {name: visit.given(name) for name in _FILTERS}
    wanted = wanted_from(given)
    following = None
    if all(value is None for value in wanted):
        board = await board_of(visit.desk.insights, visit.tow, visit.now_us)
        columns = board.columns
    else:
        board = await counts_of(visit.desk.insights, visit.tow)
        if wanted.repo is not None:
            wanted = wanted._replace(repo=await full_name(visit.tow.pulls, wanted.repo))
        cursor = visit.given("cursor", 400) or ""
        found = await page_of(visit.desk.insights, visit.tow.policy, wanted, cursor, visit.now_us)
        columns = columns_of(found.records, visit.tow.policy, visit.now_us)
        following = found.following
    return visit.page(
        "fleet.html",
        "fleet",
        board=board,
        columns=columns,
        given=given,
        filtered=any(given.values()),
        following=following,
        repos=await visit.desk.insights.repos(MOST_REPOS),
        rules=get_args(RuleName),
        order=ORDER,
        most_counted=MOST_COUNTED,
    )


@page
async def pull(visit: Visit) -> Response:
    record = await _record(visit)
    story = await story_of(visit.tow.pulls, record)
    skip = visit.given("skip", 6) or "0"
    skipped = min(int(skip), _MOST_SKIPPED) if skip.isascii() and skip.isdigit() else 0
    shown = pull_page(record, visit.tow.policy, story, visit.now_us, skipped)
    return visit.page("pull.html", "fleet", pull=shown, more_events=story.more_events)


@action("command")
async def command(visit: Visit, form: Form) -> Response:
    """The same as the API's: 409 where the state does not allow it."""
    record = await _record(visit)
    order = form.get("command", "")[:LONGEST_NAME]
    ref = record.ref
    await give_order(visit.control, visit.tow, visit.principal, ref.repo, ref.number, order)
    return went(pull_path(record.ref), "ordered")


@page
async def health(visit: Visit) -> Response:
    span = span_of(visit.given("days"))
    found = await health_of(visit.control, visit.tow, visit.desk, span)
    return visit.page("health.html", "health", health=found, spans=SPANS)


@action("admin")
async def reset(visit: Visit, form: Form) -> Response:
    name = form.get("name", "").replace("\0", "")[:LONGEST_NAME]
    body = ResetBody(name=name or None)
    await reset_breakers(visit.control, visit.tow, visit.principal, body)
    return went(f"{HOME}/health", "reset")


async def _record(visit: Visit) -> PullRecord:
    parts = visit.request.path_params
    number = str(parts["number"])
    if not (number.isascii() and number.isdigit() and len(number) <= 15):
        raise Problem(404, "not_found", "a pull request has a number")
    repo = await full_name(visit.tow.pulls, str(parts["repo"])[:LONGEST_NAME])
    record = await visit.tow.pulls.read(repo, int(number))
    if record is None:
        raise Problem(404, "unknown_pull", f"{repo}#{number} is not towed, or ended long ago")
    return record
