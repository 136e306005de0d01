"""Under which terms a history is lived through again, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from towline.core.backtest_history import History
from towline.core.backtest_life import FOREVER_US
from towline.core.backtest_sweeps import Sweep, Sweeps
from towline.core.budgets import Strategy
from towline.core.lifecycle import State
from towline.core.sweep_policy import RepoPolicy

ESCALATE: Final = "escalate"


class Choice(NamedTuple):
    """What a sweep did: a remedy's strategy, or an escalation."""

    at_us: int
    what: str
    rule: str
    reason: str
    attempt: int = 0
    needless: bool = False
    """The wait ended by itself in the history."""
    in_vain: bool = False
    """Nobody answered: the forge or the CI was away, and the try was given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a replay as recorded teaches about what the log does not hold.

    `held` are the starts of sweeps in which it was due and was not helped; `listed` are the places
    of corrections that no sweep made, but the listing of open pull requests; `out_of_turn` counts
    recorded decisions at a time at which, as we see it, none was due.
    """

    held: frozenset[int] = frozenset()
    listed: frozenset[int] = frozenset()
    helped: frozenset[int] = frozenset()
    out_of_turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which a history is lived through again.

    `learned` is None in the replay that learns. `usual_us` is how long a state usually lasts before
    the world moves on by itself.
    """

    policy: RepoPolicy
    sweeps: Sweeps
    heal_unlisted: bool = False
    verify_us: int = 300_000_000
    reopened: Sequence[int] = ()
    """When one for the same vulnerability was closed for another, here or elsewhere."""
    learned: Learned | None = None
    closed: Callable[[Sweep], bool] = lambda sweep: False
    in_vain: Callable[[Strategy, int], bool] = lambda strategy, at_us: False
    """Whether a try that the history does not have at that time would fall into an outage."""
    usual_us: Mapping[State, int] = field(default_factory=dict)
    end_us: int = FOREVER_US
    """Where the history ends: after that only what it tells of is lived through, if late."""


@dataclass(slots=True)
class Replayed:
    choices: list[Choice] = field(default_factory=list)
    state: State = "CREATED"
    ended_us: int | None = None
    unknown: str = ""
    """Why the rest is not known."""
    tried: Strategy | None = None
    """The remedy whose outcome is not known, and `tries` how many the budget has left for it."""
    tries: int = 0
    learned: Learned = field(default_factory=Learned)


def recorded(history: History) -> list[Choice]:
    """What the sweeps really did."""
    return [
        Choice(
            step.at_us,
            step.strategy or ESCALATE,
            step.rule,
            step.reason,
            step.attempt,
            in_vain=step.in_vain,
        )
        for step in history.steps
        if step.by_sweep and step.kind in ("remedy", "escalated")
    ]
