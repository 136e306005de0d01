"""How the tow is doing: what the health page shows, computed from bounded queries."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from towline.coordination.breaker import Report
from towline.core.ended import Step, What, bucket_of, healed_by
from towline.core.lifecycle import State
from towline.errors import TowlineError
from towline.ports.dashboard import Backlog, Ended, Past, Reason
from towline.ports.forge import Allowance, Forge
from towline.ports.hooks import HookHour
from towline.ports.jobs import Depth
from towline.web.control_access import Control
from towline.web.dashboard import charts
from towline.web.dashboard.charts import Chart, Datum
from towline.web.dashboard.desk import Desk
from towline.web.dashboard.health_span import Span
from towline.web.dashboard.pages import duration
from towline.web.tow_access import Tow

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
        found = charts.percentile(exact, share)
        return "" if found is None else duration(found)
    values = sorted(buckets.elements())
    place = charts.percentile(values, share)
    return "" if place is None else charts.STEPS[int(place)]


def _throughput(ended: Counter[tuple[int, State]], starts: Sequence[int], span: Span) -> Chart:
    data = [
        Datum(span.label(at), {"merged": ended[at, "MERGED"], "closed": ended[at, "CLOSED"]})
        for at in starts
    ]
    return charts.bars(f"Ended per {span.per}", "pull requests", f"{span.per} (UTC)", data)


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
    return charts.bars(title, "webhooks", f"{span.per} (UTC)", data)


def _spread(title: str, buckets: Buckets) -> Chart:
    return charts.bars(title, "pull requests", "took", charts.distribution(buckets))


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
