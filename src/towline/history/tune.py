"""How long pull requests really stay in each state, and which staleness thresholds follow from it.

`towline tune` feeds the event log to `observe`, one pull request after the other, and shows a row
for each state. Only a wait that ended by itself tells how long the world takes. A wait that a
remedy, an escalation or a person ended, or whose end no webhook reported, is counted as cut short
and left out of the percentiles: it would have lasted longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.history.log_steps import Step, steps_of
from towline.history.replay import Life
from towline.pulls.lifecycle import State, move
from towline.pulls.model import PullEvent
from towline.pulls.staleness import THRESHOLD_SECONDS, Thresholds

Advice: TypeAlias = Literal["keep", "raise", "lower"]
FEWEST: Final = 10
TO_A_PERSON: Final[tuple[State, ...]] = ("CREATED", "CHECKS_RUNNING", "MERGING")
"""No remedy is listed for these when they are stale, unless `heal_unlisted` is set."""


@dataclass(slots=True)
class Waits:
    """The waits in one state: how many seconds each took that ended by itself."""

    seconds: list[float] = field(default_factory=list)
    cut_short: int = 0

    def percentile(self, share: float) -> float | None:
        """The shortest time within which this share of the waits ended."""
        ordered = sorted(self.seconds)
        return ordered[ceil(share * len(ordered)) - 1] if ordered else None


def observe(log: Sequence[PullEvent], waits: dict[State, Waits]) -> None:
    """Add the waits that the log of one pull request shows; none if its beginning is missing."""
    if not log or log[0].event_type != "PR_OPENED":
        return
    first, *steps = steps_of(log)
    life = Life(log[0].at_us, first.head if first is not None else "")
    for step in steps:
        state, since_us = life.state, life.since_us
        if step is None or state not in THRESHOLD_SECONDS:
            if step is not None:
                life.live(step)
            continue
        life.live(step)
        if (life.state, life.since_us) == (state, since_us) or step.at_us <= since_us:
            continue
        of_state = waits.setdefault(state, Waits())
        if _ended_by_itself(state, step):
            of_state.seconds.append((step.at_us - since_us) / 1e6)
        else:
            of_state.cut_short += 1


def _ended_by_itself(state: State, step: Step) -> bool:
    """An event that implies other states came late: when this one really ended is not known."""
    if step.kind != "world" or step.happening is None or step.by_person:
        return False
    if step.happening == "BRANCH_UPDATED":
        return False
    found = move(state, step.happening)
    return len(found.path) == 1 and (found.target != "MERGED" or state == "MERGING")


class Row(NamedTuple):
    """Times in seconds; `measured` is the percentile asked for, `seconds` the threshold advised."""

    state: State
    n: int
    cut_short: int
    p50: float | None
    p90: float | None
    p99: float | None
    threshold: float
    measured: float | None
    advice: Advice
    seconds: float
    why: str


def rows(
    waits: dict[State, Waits], thresholds: Thresholds, share: float, *, heal_unlisted: bool = False
) -> list[Row]:
    """One for each state that can be stale; `share` of its healthy waits are to end undisturbed."""
    return [
        _row(state, waits.get(state, Waits()), current, share, heal_unlisted)
        for state, current in thresholds.items()
    ]


def _row(state: State, waits: Waits, current: float, share: float, heal_unlisted: bool) -> Row:
    n, fewest, measured = len(waits.seconds), _fewest_for(share), waits.percentile(share)
    fitting = _rounded_up(measured or 0)
    wanted, why = current, "fits"
    if n < fewest:
        why = f"too few: {n} waits ended by themselves, {fewest} are needed"
    elif fitting > 0.9 * current and waits.cut_short:
        # Waits that were cut at the threshold may have been healthy: the percentile is too low.
        wanted = max(fitting, _rounded_up(1.5 * current))
        why = f"healthy waits reach the threshold, and {waits.cut_short} were cut short"
    elif fitting > current:
        wanted, why = fitting, "healthy waits are taken for stuck"
    elif fitting < current and state in TO_A_PERSON and not heal_unlisted:
        why = "a stale one goes straight to a person, unless reconciler.heal_unlisted is set"
    elif fitting < current:
        wanted, why = fitting, "finds stuck ones earlier, and leaves healthy ones alone"
    return Row(
        state=state,
        n=n,
        cut_short=waits.cut_short,
        p50=waits.percentile(0.5),
        p90=waits.percentile(0.9),
        p99=waits.percentile(0.99),
        threshold=current,
        measured=measured,
        advice="keep" if wanted == current else "raise" if wanted > current else "lower",
        seconds=wanted,
        why=why,
    )


def _fewest_for(share: float) -> int:
    """With fewer the percentile is only the longest wait that happened to be seen."""
    return max(FEWEST, ceil(1 / (1 - share) - 1e-9))


def _rounded_up(seconds: float) -> float:
    """To half a minute below ten, else to a whole one; a minute is the least."""
    step = 30 if seconds <= 600 else 60
    return max(60, ceil(seconds / step) * step)


def as_toml(found: Iterable[Row], repo: str | None = None) -> str:
    """The thresholds that should change, as a table that the settings take."""
    title = f'[repo."{repo}".staleness]' if repo else "[staleness]"
    lines = [
        f"{row.state.lower()} = {row.seconds:g}  # was {row.threshold:g}; {row.n} observed"
        for row in found
        if row.advice != "keep"
    ]
    return "\n".join([title, *lines]) + "\n"
