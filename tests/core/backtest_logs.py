"""Logs of pull requests, written by hand in minutes, and their replays."""

from __future__ import annotations

from typing import Any

from towline.core.backtest_history import History, history_of_log
from towline.core.backtest_replay import replay, traces_of
from towline.core.backtest_sweeps import Sweeps, sweeps_of
from towline.core.backtest_terms import Replayed, Terms
from towline.core.budgets import MAX_TRIES
from towline.core.pulls import PullEvent
from towline.core.snapshot import PullRef
from towline.core.staleness import THRESHOLD_SECONDS
from towline.core.sweep_policy import RepoPolicy

MINUTE = 60_000_000
REF = PullRef("github", "octo-org/app", 7)
AS_IT_WAS = RepoPolicy()
SWEEPS = 5
"""Minutes between sweeps, which come at whole multiples."""


def at(minute: float, kind: str, **payload: Any) -> PullEvent:
    return PullEvent(kind, "github-webhook", int(minute * MINUTE), payload, f"{kind} {minute}")


def opened(minute: float = 0, **payload: Any) -> PullEvent:
    return at(minute, "PR_OPENED", vulnerability_id="CVE-2024-1", **payload)


def remedy(minute: float, kind: str, strategy: str, rule: str, attempt: int = 1) -> PullEvent:
    why = {"rule": rule, "reason": "", "attempt": attempt, "by": "reconciler"}
    event = at(minute, f"REMEDIATION_{kind}", strategy=strategy, intent=f"i{minute}", **why)
    return event._replace(source="reconciler")


def outcome(minute: float, begun: float, strategy: str, said: str = "done") -> PullEvent:
    told: dict[str, Any] = {"intent": f"i{begun}", "strategy": strategy, "outcome": said}
    returned = said in ("unavailable", "limited")
    told |= {"by": "reconciler", "budget_returned": returned}
    return at(minute, "REMEDIATION_OUTCOME", **told)._replace(source="reconciler")


def escalated(minute: float, rule: str) -> PullEvent:
    event = at(minute, "ESCALATED_NEEDS_INTERVENTION", rule=rule, reason="")
    return event._replace(source="reconciler")


def history(*events: PullEvent) -> History:
    return history_of_log(REF, events)


def policy(thresholds: dict[str, float] | None = None, **budgets: int) -> RepoPolicy:
    """Thresholds in minutes."""
    changed = {state: 60 * minutes for state, minutes in (thresholds or {}).items()}
    return RepoPolicy(
        thresholds={**THRESHOLD_SECONDS, **changed},  # type: ignore[dict-item]
        budgets={**MAX_TRIES, **budgets},  # type: ignore[dict-item]
    )


def lived(told: History, under: RepoPolicy, **terms: Any) -> Replayed:
    """Through again under a policy, as one after the policy that the history was made under."""
    every = SWEEPS * MINUTE
    regular = range(0, 50 * every, every)
    traces = {*traces_of(told, AS_IT_WAS), *regular}
    sweeps = Sweeps(sweeps_of(traces, 0, 50 * every, SWEEPS * 60))
    end_us = told.steps[-1].at_us
    first = Terms(policy=AS_IT_WAS, sweeps=sweeps, end_us=end_us)
    learned = replay(told, first).learned
    return replay(told, Terms(policy=under, sweeps=sweeps, learned=learned, end_us=end_us, **terms))


def told_of(replayed: Replayed) -> list[tuple[float, str]]:
    return [(choice.at_us / MINUTE, choice.what) for choice in replayed.choices]
