"""How patiently and how often pull requests are helped: configuration, as plain data.

A repository may differ from the rest in its thresholds, budgets, signals and triggers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from towline.pulls.budgets import MAX_TRIES, Counts
from towline.pulls.lifecycle import State
from towline.pulls.signals import DEFAULT_TRIGGERS, Poked, Signals, Towing, Trigger
from towline.pulls.staleness import THRESHOLD_SECONDS, Thresholds
from towline.pulls.transitions import Context
from towline_once.failure_patterns import Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoPolicy:
    """What holds for one repository."""

    thresholds: Thresholds = field(default_factory=lambda: THRESHOLD_SECONDS)
    budgets: Counts = field(default_factory=lambda: MAX_TRIES)
    signals: Signals = field(default_factory=Signals)
    triggers: Mapping[Poked, Trigger] = field(default_factory=lambda: DEFAULT_TRIGGERS)
    observe_only: bool = False

    def trigger(self, poked: Poked) -> Trigger:
        return self.triggers.get(poked) or DEFAULT_TRIGGERS[poked]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowPolicy:
    """`general` holds for every repository that has no policy of its own in `repos`."""

    general: RepoPolicy = field(default_factory=RepoPolicy)
    repos: Mapping[str, RepoPolicy] = field(default_factory=dict)
    towing: Towing = field(default_factory=Towing)
    own_logins: frozenset[str] = frozenset()
    patterns: tuple[Pattern, ...] = ()
    """The user's own, asked before the built-in ones when a failure's log is read."""
    heal_unlisted: bool = False
    """Whether a stuck CREATED, CHECKS_RUNNING or MERGING gets one try before a person."""
    reopen_unknown: bool = True
    """Whether a conflicting one whose vulnerability is not known is closed all the same."""
    fixed: frozenset[str] | None = None
    """The repositories in which a closed one is opened anew; None where others see to that."""
    max_parallel: int = 4
    batch_size: int = 50
    max_stale_per_sweep: int = 1000
    max_actions_per_sweep: int = 50
    verify_seconds: float = 300.0
    """How long an effect may take to be seen before it counts as not seen."""
    fresh_seconds: float = 20.0
    """How old a look may be that an action still relies on."""
    poll_pauses: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Between the looks that wait for an effect."""
    log_bytes: int = 120_000
    command_rate_per_minute: int = 10
    command_permission: str = "write"

    def of(self, repo: str) -> RepoPolicy:
        return self.repos.get(repo, self.general)

    def opens_anew(self, repo: str) -> bool:
        return self.fixed is None or repo in self.fixed

    def context(self, repo: str) -> Context:
        """What the events of a repository are read by."""
        policy = self.of(repo)
        return Context(
            signals=policy.signals,
            towing=self.towing,
            ours=self.own_logins,
            thresholds=policy.thresholds,
            patterns=self.patterns,
        )

    def shortest_thresholds(self) -> dict[State, float]:
        """Whatever is stale anywhere is stale by these."""
        shortest: dict[State, float] = {}
        for policy in (self.general, *self.repos.values()):
            for state, seconds in policy.thresholds.items():
                shortest[state] = min(seconds, shortest.get(state, seconds))
        return shortest
