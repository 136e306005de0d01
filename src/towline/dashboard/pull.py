"""One pull request: where it stands and why, what is next and when, and what may be ordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.pulls.command_rules import refusal
from towline.pulls.http_models import Story
from towline.pulls.lifecycle import RESULT_OF, STATES, TERMINAL, State
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import TowPolicy
from towline.reconciler.status import PullStatus, pull_status
from towline.remediation.strategies import OUTCOME
from towline.slash_commands import COMMANDS, Command

# ------------------------------------------------------------------ timeline
# A pull request's life as a picture: spans of states on a time axis, and marks above them.
#
# Pure: it turns the log into numbers that a template draws. The log tells each move; where a remedy
# moved the state by itself, the next line's `from` tells that it did, and the remedy's line when.

WIDTH: Final = 1000
LEFT: Final = 96
RIGHT: Final = 16
MOST_DRAWN: Final = 400
_LABEL_WIDTH: Final = 7.2
_STEPS: Final = (
    1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
    604_800, 1_209_600, 2_592_000,
)  # fmt: skip
_MOST_TICKS: Final = 9
_SAID_OF_COMMANDS: Final = {
    "COMMAND_REJECTED": "refused by",
    "COMMAND_FAILED": "given up, ordered by",
}

MarkKind: TypeAlias = Literal["remedy", "command", "alarm"]


class Span(NamedTuple):
    state: State
    from_us: int
    to_us: int

    @property
    def seconds(self) -> float:
        return (self.to_us - self.from_us) / 1e6


class Mark(NamedTuple):
    kind: MarkKind
    at_us: int
    text: str


class Life(NamedTuple):
    spans: Sequence[Span]
    marks: Sequence[Mark]


class Box(NamedTuple):
    span: Span
    x: float
    width: float
    label: bool
    """Whether its name fits into it."""


class Pin(NamedTuple):
    mark: Mark
    x: float


class Tick(NamedTuple):
    x: float
    at_us: int
    daily: bool
    """Whether the day says more than the time of day."""


class Drawing(NamedTuple):
    boxes: Sequence[Box]
    pins: Sequence[Pin]
    ticks: Sequence[Tick]
    states: Sequence[State]
    """Those that are in the picture, in the order of a life."""
    total_seconds: float


def life_of(events: Sequence[PullEvent], state: State, since_us: int, now_us: int) -> Life:
    """`state` and `since_us` are those of the record, which has the last word."""
    moves: list[tuple[State, int]] = []
    nudged_us: int | None = None
    for event in events:
        before = _state(event.payload.get("from"))
        if before is not None and moves and moves[-1][0] != before and _is_believed(event):
            moves.append((before, max(moves[-1][1], nudged_us or event.at_us)))
        after = _reached(event)
        if after is not None and (not moves or moves[-1][0] != after):
            moves.append((after, event.at_us))
        if event.event_type.startswith("REMEDIATION_"):
            nudged_us = event.at_us
    if not moves or moves[-1][0] != state:
        moves.append((state, max(since_us, moves[-1][1] if moves else since_us)))
    ends = [at for _, at in moves[1:]] + [max(now_us, moves[-1][1])]
    spans = [Span(one, at, max(at, end)) for (one, at), end in zip(moves, ends, strict=True)]
    marks = [mark for event in events if (mark := _mark(event)) is not None]
    return Life(spans[-MOST_DRAWN:], marks[-MOST_DRAWN:])


def _is_believed(event: PullEvent) -> bool:
    return not event.payload.get("anomaly") and not event.payload.get("outdated")


def _reached(event: PullEvent) -> State | None:
    payload = event.payload
    if not _is_believed(event):
        return None
    told = _state(payload.get("to")) or _state(payload.get("actual"))
    if told is not None:
        return told
    return next((state for name, state in RESULT_OF.items() if name == event.event_type), None)


def _state(value: object) -> State | None:
    return next((state for state in STATES if state == value), None)


def _mark(event: PullEvent) -> Mark | None:
    payload, kind = event.payload, event.event_type
    if kind == OUTCOME:
        return None
    if kind.startswith("REMEDIATION_"):
        by = payload.get("by", event.source)
        return Mark("remedy", event.at_us, f"{_plain(kind)} by {by}")
    if kind.startswith("COMMAND_"):
        by = payload.get("requested_by", event.source)
        said = _SAID_OF_COMMANDS.get(kind, "ordered by")
        return Mark("command", event.at_us, f"{payload.get('command')} {said} {by}")
    if kind in ("ESCALATED_NEEDS_INTERVENTION", "STATE_DRIFT_CORRECTED") or payload.get("anomaly"):
        return Mark("alarm", event.at_us, f"{_plain(kind)}: {_said(payload)}".rstrip(": "))
    return None


def _plain(kind: str) -> str:
    return kind.removeprefix("REMEDIATION_").replace("_", " ").capitalize()


def _said(payload: Mapping[str, object]) -> str:
    return str(payload.get("anomaly") or payload.get("reason") or payload.get("text") or "")[:200]


def drawn(life: Life) -> Drawing:
    """The numbers of the picture; its height is the template's matter."""
    start, end = life.spans[0].from_us, max(life.spans[-1].to_us, life.spans[0].from_us + 1)
    scale = (WIDTH - LEFT - RIGHT) / (end - start)

    def x(at_us: int) -> float:
        return round(LEFT + (min(max(at_us, start), end) - start) * scale, 1)

    boxes = []
    for span in life.spans:
        width = round(max(1.5, x(span.to_us) - x(span.from_us)), 1)
        fits = len(span.state) * _LABEL_WIDTH + 8 < width
        boxes.append(Box(span, x(span.from_us), width, fits))
    present = {span.state for span in life.spans}
    return Drawing(
        boxes,
        [Pin(mark, x(mark.at_us)) for mark in life.marks if mark.at_us >= start],
        [Tick(x(at), at, daily) for at, daily in ticks_of(start, end)],
        [state for state in STATES if state in present],
        (end - start) / 1e6,
    )


def ticks_of(start_us: int, end_us: int) -> list[tuple[int, bool]]:
    """Round moments, few enough to be read."""
    seconds = (end_us - start_us) / 1e6
    step = next((one for one in _STEPS if seconds / one <= _MOST_TICKS), _STEPS[-1])
    step_us = step * 1_000_000
    first = -(-start_us // step_us) * step_us
    return [(at, step >= 86_400) for at in range(first, end_us + 1, step_us)][: 2 * _MOST_TICKS]


# ------------------------------------------------------------------ the page

EVENTS_A_PAGE: Final = 50
_TELLING: Final = 1_000
"""A diagnosis made now reads no more of the log than its end."""
_ABOUT: Final[Mapping[str, str]] = {
    "/rebuild": "Run the failed checks again",
    "/recheck-policy": "Have the policy bot look again",
    "/recheck-sod": "Check separation of duties again",
    "/recheck-approval": "Ask the approver bot again",
    "/merge": "Ask for the merge again",
    "/update-branch": "Bring the base branch in",
    "/close-and-reopen": "Close it and start a fresh one",
    "/cancel": "Close it and stop towing",
    "/why": "Post the diagnosis as a comment",
}
_GRAVE: Final = frozenset({"/close-and-reopen", "/cancel"})


class Button(NamedTuple):
    command: str
    about: str
    refused: str | None
    """Why it cannot be ordered now."""
    grave: bool


class Row(NamedTuple):
    """An event as the log shows it."""

    event: PullEvent
    who: str
    said: str
    kind: str


class PullPage(NamedTuple):
    record: PullRecord
    status: PullStatus
    drawing: Drawing
    spans: Sequence[Span]
    buttons: Sequence[Button]
    rows: Sequence[Row]
    older: int | None
    """How many of the newest to skip to see older ones."""
    newer: int | None
    total: int
    next_us: int | None
    """When the reconciler looks at it, unless something happens before."""


def pull_page(
    record: PullRecord, policy: TowPolicy, story: Story, now_us: int, skip: int
) -> PullPage:
    life = life_of(story.events, record.state, record.since_us, now_us)
    total = len(story.events)
    end = max(0, total - skip)
    rows = [row_of(event) for event in reversed(story.events[max(0, end - EVENTS_A_PAGE) : end])]
    return PullPage(
        record,
        pull_status(record, policy, now_us, story._replace(events=story.events[-_TELLING:])),
        drawn(life),
        life.spans,
        [_button(command, record) for command in COMMANDS],
        rows,
        skip + EVENTS_A_PAGE if end > EVENTS_A_PAGE else None,
        max(0, skip - EVENTS_A_PAGE) if skip else None,
        total,
        _next_us(record, policy),
    )


def _button(command: Command, record: PullRecord) -> Button:
    return Button(command, _ABOUT[command], refusal(command, record.state), command in _GRAVE)


def _next_us(record: PullRecord, policy: TowPolicy) -> int | None:
    if record.state in TERMINAL:
        return None
    if record.intent is not None:
        return record.intent.verify_by_us
    seconds = policy.of(record.ref.repo).thresholds.get(record.state)
    return None if seconds is None else record.since_us + round(seconds * 1e6)


def row_of(event: PullEvent) -> Row:
    payload = event.payload
    who = payload.get("requested_by") or payload.get("by") or payload.get("actor") or ""
    said = next(
        (
            str(payload[name])
            for name in ("anomaly", "reason", "detail", "command", "summary", "text", "evidence")
            if payload.get(name)
        ),
        "",
    )
    moved = ""
    if payload.get("from") and payload.get("to") and payload["from"] != payload["to"]:
        moved = f"{payload['from']} → {payload['to']}"
    outcome = str(payload.get("outcome") or "")
    parts = [part for part in (moved, outcome, said) if part]
    named = ", ".join(map(str, who)) if isinstance(who, list) else str(who)
    return Row(event, named, " · ".join(parts)[:400], _kind(event))


def _kind(event: PullEvent) -> str:
    if event.payload.get("anomaly"):
        return "alarm"
    if event.event_type.startswith("REMEDIATION_"):
        return "remedy"
    if event.event_type.startswith("COMMAND_"):
        return "command"
    return "alarm" if event.event_type.startswith("ESCALAT") else "plain"
