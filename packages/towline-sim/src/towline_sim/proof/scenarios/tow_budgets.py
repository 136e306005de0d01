"""What each try of a remedy costs, told by the log alone, and how often a thing may be reopened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from towline.pulls.budgets import STRATEGIES, Strategy
from towline.pulls.model import PullEvent, PullRecord
from towline.remediation.record_changes import BY_SWEEP
from towline.remediation.strategies import OUTCOME, REMEDIES
from towline_sim.proof.harness import Stage
from towline_sim.proof.scenarios.tow_effects import Key
from towline_sim.proof.scenarios.tow_world import BUDGETS

REMEDY_OF: Final[Mapping[str, Strategy]] = {
    remedy.event_type: remedy.strategy for remedy in REMEDIES.values()
}
_STATES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "checks_transient": ("CHECKS_FAILED",),
    "policy_bot_stale": ("CHECKS_PASSED", "POLICY_EVALUATING"),
    "policy_failed_sod": ("POLICY_FAILED",),
    "approver_bot_stale": ("POLICY_PASSED",),
    "automerge_bot_stale": ("APPROVED",),
    "fallthrough": ("CREATED", "CHECKS_RUNNING", "MERGING"),
}
"""Where each rule of the classification may hold; those that are missing hold anywhere."""
_COSTS_NOTHING: Final = frozenset({"unavailable", "limited", "moved"})
"""Nothing was done, as far as anybody knows."""


class Tries:
    """A try costs one from when it is begun, whatever the record says of it.

    It costs nothing once nothing came of it, and one again if it turns out to have arrived.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._costs: dict[Key, dict[str, tuple[Strategy, int]]] = {}
        self._upon: dict[tuple[Key, int], tuple[object, ...]] = {}
        """What a decision upon each version of a record is made upon."""
        self._reopened: dict[str | None, list[int]] = {}
        """When each vulnerability got a fresh pull request."""

    def follow(self, name: str, after: PullRecord, new: Sequence[PullEvent]) -> None:
        key = (after.ref.repo, after.ref.number)
        self._upon[key, after.version] = _upon(after)
        costs = self._costs.setdefault(key, {})
        for event in new:
            self._note(costs, event)
            done = event.event_type == OUTCOME and event.payload.get("outcome") == "done"
            if done and event.payload.get("strategy") == "close_and_reopen":
                self._reopened.setdefault(after.vulnerability_id, []).append(event.at_us)
        if not new:
            return
        spent: Counter[Strategy] = Counter()
        for strategy, cost in costs.values():
            spent[strategy] += cost
        for strategy in STRATEGIES:
            ever = after.lifetime[strategy]
            text = f"{name} has {ever} tries of {strategy}, not {spent[strategy]}"
            self._stage.expect(ever == spent[strategy], text)

    def _note(self, costs: dict[str, tuple[Strategy, int]], event: PullEvent) -> None:
        begun, intent = REMEDY_OF.get(event.event_type), str(event.payload.get("intent"))
        if begun is not None and event.payload["by"] == BY_SWEEP:
            costs[intent] = (begun, 1)
        elif event.event_type == OUTCOME and intent in costs:
            strategy, cost = costs[intent]
            outcome = event.payload["outcome"]
            if outcome in _COSTS_NOTHING or event.payload.get("budget_returned"):
                cost = 0
            elif outcome != "unneeded":
                cost = 1
            costs[intent] = (strategy, cost)

    def begins(self, name: str, before: PullRecord, event: PullEvent, late_seconds: float) -> None:
        """What a sweep decided holds for what it was decided upon, and for nothing else."""
        rule = str(event.payload["rule"])
        fits = before.state in _STATES_OF.get(rule, (before.state,))
        self._stage.expect(fits, f"{name} is {before.state}, and is helped for {rule}")
        version = int(str(event.payload["intent"]).rpartition(" ")[2])
        decided = self._upon.get(((before.ref.repo, before.ref.number), version))
        self._stage.expect(
            decided == _upon(before), f"{name} is helped as was decided upon {decided}"
        )
        if REMEDY_OF[event.event_type] != "close_and_reopen":
            return
        long_ago = event.at_us - late_seconds * 1e6
        times = sum(at < long_ago for at in self._reopened.get(before.vulnerability_id, ()))
        most = BUDGETS["close_and_reopen"]
        self._stage.expect(times < most, f"{name}: its vulnerability had {times} fresh ones")


def _upon(record: PullRecord) -> tuple[object, ...]:
    return record.state, record.head_sha, record.last_remediation_us
