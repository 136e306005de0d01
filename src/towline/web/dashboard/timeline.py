"""A pull request's life as a picture: spans of states on a time axis, and marks above them.

Pure: it turns the log into numbers that a template draws. The log tells each move; where a remedy
moved the state by itself, the next line's `from` tells that it did, and the remedy's line when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.core.lifecycle import RESULT_OF, STATES, State
from towline.core.pulls import PullEvent
from towline.core.remedies import OUTCOME

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
