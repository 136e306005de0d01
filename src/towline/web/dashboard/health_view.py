"""How the tow is doing: what the health page shows, computed from bounded queries."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from towline.core.lifecycle import State
from towline.errors import TowlineError
from towline.ports.dashboard import Backlog, Ended, Reason, Step
from towline.ports.forge import Allowance, Forge
from towline.ports.hooks import HookHour
from towline.ports.jobs import Depth
from towline.web.control_access import Control
from towline.web.control_models import moment
from towline.web.dashboard import charts
from towline.web.dashboard.charts import Chart, Datum
from towline.web.dashboard.desk import Desk
from towline.web.tow_access import BreakerView, Tow

HOURS: Final = 24
HOUR_US: Final = 3_600_000_000
MOST_LIVES: Final = 5_000
MOST_HEALED: Final = 200
MOST_REASONS: Final = 500
_TOP: Final = 8
_ALLOWANCE_SECONDS: Final = 1.0
_WELL: Final = frozenset(
    {"CHECKS_PASSED", "POLICY_PASSED", "APPROVAL_GRANTED", "MERGE_ATTEMPTED", "MERGE_SUCCEEDED",
     "PR_MERGED"}
)  # fmt: skip
_PERSON: Final = frozenset({"COMMAND_RECEIVED", "ESCALATED_NEEDS_INTERVENTION"})


class Cause(NamedTuple):
    rule: str
    times: int
    example: str


class Healing(NamedTuple):
    """Of those that were merged after a remedy, and those that wait for a person."""

    seconds: Sequence[float]
    """From each first remedy until it went on."""
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
    merged: int
    throughput: Chart
    lead: Chart
    lead_times: Sequence[float]
    heal: Chart
    healing: Healing
    causes: Sequence[Cause]
    breakers: Sequence[BreakerView]
    hooks: Chart
    hooks_seen: bool
    depth: Depth
    backlog: Backlog
    spending: Sequence[Spending]


async def health_of(control: Control, tow: Tow, desk: Desk) -> Health:
    now_us = control.clock.now_us()
    since_us = now_us - now_us % HOUR_US - (HOURS - 1) * HOUR_US
    insights = desk.insights
    ended = await insights.ended(since_us)
    lives = await insights.lives(since_us, MOST_LIVES)
    lead_times = [(one.merged_us - one.created_us) / 1e6 for one in lives]
    stuck = (await tow.pulls.census())["NEEDS_INTERVENTION"]
    healing = healing_of(await insights.healed(MOST_HEALED), stuck)
    hours = await control.hours.hours(None, since_us)
    return Health(
        sum(one.times for one in ended if one.state == "MERGED"),
        _throughput(ended, since_us),
        _spread("Time from the start of the tow to the merge", lead_times),
        lead_times,
        _spread("Time from a remedy until it went on", healing.seconds),
        healing,
        causes_of(await insights.reasons(MOST_REASONS)),
        await tow.breakers.views(),
        _hooks(hours, since_us),
        bool(hours),
        await control.jobs.depth(""),
        await insights.backlog(),
        await _spending(desk.forges),
    )


def _throughput(ended: Iterable[Ended], since_us: int) -> Chart:
    counts: dict[tuple[int, State], int] = {(one.hour_us, one.state): one.times for one in ended}
    data = [
        Datum(
            f"{moment(hour):%H:%M}",
            {"merged": counts.get((hour, "MERGED"), 0), "closed": counts.get((hour, "CLOSED"), 0)},
        )
        for hour in _hours(since_us)
    ]
    return charts.bars("Ended per hour", "pull requests", "hour (UTC)", data)


def _hooks(hours: Iterable[HookHour], since_us: int) -> Chart:
    totals: dict[int, Counter[str]] = {hour: Counter() for hour in _hours(since_us)}
    for one in hours:
        if one.hour_us in totals:
            lost = max(0, one.delivered - one.received - one.recovered)
            totals[one.hour_us] += Counter(
                received=one.received, recovered=one.recovered, missing=lost
            )
    data = [
        Datum(
            f"{moment(hour):%H:%M}",
            {kind: found[kind] for kind in ("received", "recovered", "missing")},
        )
        for hour, found in totals.items()
    ]
    return charts.bars("Webhooks that the forge delivered", "webhooks", "hour (UTC)", data)


def _hours(since_us: int) -> Iterable[int]:
    return range(since_us, since_us + HOURS * HOUR_US, HOUR_US)


def _spread(title: str, seconds: Sequence[float]) -> Chart:
    return charts.bars(title, "pull requests", "took", charts.distribution(seconds))


def healing_of(steps: Iterable[Step], stuck: int) -> Healing:
    """A remedy heals when what it was for goes well; the first one of several starts the clock."""
    seconds: list[float] = []
    alone = helped = 0
    for _, log in groupby(steps, key=lambda step: (step.repo, step.number)):
        began_us: int | None = None
        person = False
        for step in log:
            person = person or step.event_type in _PERSON
            if step.event_type.startswith("REMEDIATION_") and began_us is None:
                began_us = step.at_us
            elif step.event_type in _WELL and began_us is not None:
                seconds.append((step.at_us - began_us) / 1e6)
                began_us = None
        helped += person
        alone += not person
    return Healing(seconds, alone, helped, stuck)


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
