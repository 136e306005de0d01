"""How the tow is doing: what the health page shows, computed from bounded queries."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from towline.dashboard.collaborators import Desk
from towline.dashboard.queries import Backlog, Ended, Past, Reason
from towline.dashboard.render import duration
from towline.forges.base import Allowance, Forge
from towline.forges.delivery_log import HookHour
from towline.http.models import moment
from towline.inbox.access import Control
from towline.jobs.model import Depth
from towline.pulls.lifecycle import State
from towline.pulls.statistics import HOUR_US, Step, What, bucket_of, healed_by
from towline.reconciler.access import Tow
from towline_once.coordination.circuit_breaker import Report
from towline_once.errors import TowlineError

# ------------------------------------------------------------------ the time span
# How far the health page looks back, and in which parts it draws that.


class Span(NamedTuple):
    days: int
    hours_a_bar: int
    shown: str
    """How a bar's beginning is written."""

    @property
    def bin_us(self) -> int:
        return self.hours_a_bar * HOUR_US

    @property
    def bars(self) -> int:
        return self.days * 24 // self.hours_a_bar

    @property
    def per(self) -> str:
        return {1: "hour", 24: "day"}.get(self.hours_a_bar, f"{self.hours_a_bar} hours")

    def starts(self, now_us: int) -> Sequence[int]:
        """Of each bar; the last is the one that is not over."""
        last = now_us - now_us % self.bin_us
        return range(last - (self.bars - 1) * self.bin_us, last + 1, self.bin_us)

    def label(self, at_us: int) -> str:
        return format(moment(at_us), self.shown)


SPANS: Final = (Span(1, 1, "%H:%M"), Span(7, 6, "%d %b %H:%M"), Span(30, 24, "%d %b"))


def span_of(days: str | None) -> Span:
    """The shortest, if none is meant."""
    return next((span for span in SPANS if str(span.days) == days), SPANS[0])


# ------------------------------------------------------------------ charts
# Charts as numbers: bars with an axis, their scale and labels. Templates draw them as SVG.

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
"""Of times that are counted, as `pulls.statistics` has their edges."""


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


# ------------------------------------------------------------------ the page

MOST_LIVES: Final = 2_000
MOST_HEALED: Final = 200
MOST_REASONS: Final = 500
_TOP: Final = 8
_ALLOWANCE_SECONDS: Final = 1.0
_BY: Final = ("alone", "helped")
Buckets: TypeAlias = Counter[int]


class Cause(NamedTuple):
    rule: str
    times: int
    example: str


class Healing(NamedTuple):
    """Of those that were merged after a remedy, and those that wait for a person."""

    buckets: Buckets
    """How many took how long from a first remedy until it went on."""
    alone: int
    helped: int
    stuck: int

    @property
    def rate(self) -> float | None:
        total = self.alone + self.helped + self.stuck
        return self.alone / total if total else None


class Spending(NamedTuple):
    forge: str
    allowance: Allowance | None


class Health(NamedTuple):
    span: Span
    merged: int
    throughput: Chart
    lead: Chart
    lead_half: str
    """Within which half were merged, and nine of ten."""
    lead_most: str
    heal: Chart
    healing: Healing
    causes: Sequence[Cause]
    breakers: Sequence[Report]
    hooks: Chart
    hooks_seen: bool
    depth: Depth
    backlog: Backlog
    spending: Sequence[Spending]
    troubles: Sequence[str]


async def health_of(control: Control, tow: Tow, desk: Desk, span: Span) -> Health:
    now_us = control.clock.now_us()
    starts = span.starts(now_us)
    insights = desk.insights
    past = await insights.past(starts[0], span.bin_us)
    ended = ended_by(await insights.ended(starts, span.bin_us), past, starts)
    lives = await insights.lives(starts[0], MOST_LIVES)
    times = [(one.merged_us - one.created_us) / 1e6 for one in lives]
    lead = buckets_of(times, past, "lead")
    stuck = (await tow.pulls.census())["NEEDS_INTERVENTION"]
    healing = healing_of(await insights.healed(MOST_HEALED, starts[0]), stuck, past)
    hours = await control.hours.hours(None, starts[0])
    exact = None if any(one.what == "lead" for one in past) else times
    return Health(
        span,
        sum(times for (_, state), times in ended.items() if state == "MERGED"),
        _throughput(ended, starts, span),
        _spread("Time from the start of the tow to the merge", lead),
        within(lead, exact, 0.5),
        within(lead, exact, 0.9),
        _spread("Time from a remedy until it went on", healing.buckets),
        healing,
        causes_of(await insights.reasons(MOST_REASONS)),
        await tow.breakers.views(),
        _hooks(hours, starts, span),
        bool(hours),
        await control.jobs.depth(""),
        await insights.backlog(),
        await _spending(desk.forges),
        desk.troubles(),
    )


def ended_by(
    known: Iterable[Ended], past: Iterable[Past], starts: Sequence[int]
) -> Counter[tuple[int, State]]:
    """By the beginning of a bar; those that are forgotten are counted beside those that are not."""
    counts: Counter[tuple[int, State]] = Counter()
    for one in known:
        counts[one.from_us, one.state] += one.times
    states: Mapping[str, State] = {"merged": "MERGED", "closed": "CLOSED"}
    for old in past:
        if old.what in states and old.place < len(starts):
            counts[starts[old.place], states[old.what]] += old.times
    return counts


def buckets_of(seconds: Iterable[float], past: Iterable[Past], what: What) -> Buckets:
    counts: Buckets = Counter(map(bucket_of, seconds))
    for old in past:
        if old.what == what:
            counts[old.bucket] += old.times
    return counts


def within(buckets: Buckets, exact: Sequence[float] | None, share: float) -> str:
    """In so much time; where only steps of it were counted, the end of the step."""
    if exact is not None:
        found = percentile(exact, share)
        return "" if found is None else duration(found)
    values = sorted(buckets.elements())
    place = percentile(values, share)
    return "" if place is None else STEPS[int(place)]


def _throughput(ended: Counter[tuple[int, State]], starts: Sequence[int], span: Span) -> Chart:
    data = [
        Datum(span.label(at), {"merged": ended[at, "MERGED"], "closed": ended[at, "CLOSED"]})
        for at in starts
    ]
    return bars(f"Ended per {span.per}", "pull requests", f"{span.per} (UTC)", data)


def _hooks(hours: Iterable[HookHour], starts: Sequence[int], span: Span) -> Chart:
    totals: dict[int, Counter[str]] = {at: Counter() for at in starts}
    for one in hours:
        at = one.hour_us - one.hour_us % span.bin_us
        if at in totals:
            lost = max(0, one.delivered - one.received - one.recovered)
            totals[at] += Counter(received=one.received, recovered=one.recovered, missing=lost)
    data = [
        Datum(span.label(at), {kind: found[kind] for kind in ("received", "recovered", "missing")})
        for at, found in totals.items()
    ]
    title = "Webhooks that the forge delivered"
    return bars(title, "webhooks", f"{span.per} (UTC)", data)


def _spread(title: str, buckets: Buckets) -> Chart:
    return bars(title, "pull requests", "took", distribution(buckets))


def healing_of(steps: Iterable[Step], stuck: int, past: Sequence[Past] = ()) -> Healing:
    logs = groupby(steps, key=lambda step: (step.repo, step.number))
    healed = [healed_by(log) for _, log in logs]
    seconds = [one for each in healed for one in each.seconds]
    alone, helped = (sum(old.times for old in past if old.what == what) for what in _BY)
    alone += sum(one.alone for one in healed)
    helped += sum(not one.alone for one in healed)
    return Healing(buckets_of(seconds, past, "heal"), alone, helped, stuck)


def causes_of(reasons: Iterable[Reason]) -> list[Cause]:
    """The commonest rules, each with a reason that it gave."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for one in reasons:
        told: Mapping[str, object] = one.diagnosis or {}
        rule = str(told.get("rule") or "not diagnosed yet")
        counts[rule] += 1
        examples.setdefault(rule, str(told.get("reason") or one.state)[:160])
    return [Cause(rule, count, examples[rule]) for rule, count in counts.most_common(_TOP)]


async def _spending(forges: Mapping[str, Forge]) -> list[Spending]:
    return [Spending(name, await _allowance(forge)) for name, forge in forges.items()]


async def _allowance(forge: Forge) -> Allowance | None:
    """As far as it is known; a forge that does not answer has no say in whether the page does."""
    try:
        async with asyncio.timeout(_ALLOWANCE_SECONDS):
            return await forge.allowance()
    except (TowlineError, TimeoutError):
        return None
