"""Charts as numbers: bars with an axis, their scale and labels. Templates draw them as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

WIDTH: Final = 640
HEIGHT: Final = 200
LEFT: Final = 48
BOTTOM: Final = 30
TOP: Final = 12
RIGHT: Final = 8
_MOST_LABELS: Final = 10
_GAP: Final = 0.22


class Piece(NamedTuple):
    """A part of a bar; `kind` gives its colour."""

    kind: str
    value: float
    y: float
    height: float


class Bar(NamedTuple):
    label: str
    shown: bool
    """Whether there is room for its label."""
    x: float
    width: float
    pieces: Sequence[Piece]
    about: str


class Line(NamedTuple):
    y: float
    text: str


class Chart(NamedTuple):
    """`unit` is that of the upright axis, `across` what stands along the other."""

    title: str
    unit: str
    across: str
    bars: Sequence[Bar]
    lines: Sequence[Line]
    kinds: Sequence[str]
    empty: bool


class Datum(NamedTuple):
    label: str
    values: Mapping[str, float]
    """Stacked in their order."""


def bars(title: str, unit: str, across: str, data: Sequence[Datum]) -> Chart:
    kinds = list(dict.fromkeys(kind for datum in data for kind in datum.values))
    largest = max((sum(datum.values.values()) for datum in data), default=0)
    step = _step(largest)
    top = max(step, math.ceil(largest / step) * step)
    scale = (HEIGHT - TOP - BOTTOM) / top
    lines = [
        Line(round(HEIGHT - BOTTOM - value * scale, 1), f"{value:g}")
        for value in (step * place for place in range(round(top / step) + 1))
    ]
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(data))
    every = max(1, math.ceil(len(data) / _MOST_LABELS))
    drawn = [_bar(datum, place, slot, scale, every) for place, datum in enumerate(data)]
    return Chart(title, unit, across, drawn, lines, kinds, largest == 0)


def _bar(datum: Datum, place: int, slot: float, scale: float, every: int) -> Bar:
    pieces: list[Piece] = []
    floor = float(HEIGHT - BOTTOM)
    for kind, value in datum.values.items():
        height = value * scale
        floor -= height
        pieces.append(Piece(kind, value, round(floor, 1), round(height, 1)))
    about = ", ".join(f"{value:g} {kind}" for kind, value in datum.values.items())
    x = LEFT + place * slot + slot * _GAP / 2
    width = slot * (1 - _GAP)
    return Bar(
        datum.label, place % every == 0, round(x, 1), round(width, 1), pieces,
        f"{datum.label}: {about}",
    )  # fmt: skip


def _step(largest: float) -> float:
    """A round number of which about four reach the top; things that are counted have no halves."""
    if largest <= 4:
        return 1.0
    rough = largest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


STEPS: Final = (
    "< 5 min", "< 15 min", "< 30 min", "< 1 h", "< 2 h", "< 4 h", "< 8 h", "< 1 d", "< 3 d",
    "longer",
)  # fmt: skip
"""Of times that are counted, as `core.ended` has their edges."""


def distribution(buckets: Mapping[int, int]) -> list[Datum]:
    """How many took how long, in steps that grow."""
    return [
        Datum(label, {"pull requests": buckets.get(place, 0)}) for place, label in enumerate(STEPS)
    ]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that so large a share does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
