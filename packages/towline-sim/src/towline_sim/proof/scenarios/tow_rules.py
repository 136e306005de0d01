"""Rules of the tow from one version of a record to the next, written down a second time here.

Nothing of this asks the product for its own tables: a slip there must not be a slip here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from towline.pulls.budgets import STRATEGIES, Strategy
from towline.pulls.lifecycle import State
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline.remediation.breakers import GLOBAL
from towline.remediation.record_changes import BY_SWEEP
from towline.remediation.strategies import OUTCOME
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import WORLD, Node, current, on_node

_RESET_BY: Final[Mapping[Strategy, frozenset[str]]] = {
    "rebuild": frozenset({"CHECKS_PASSED"}),
    "branch_update": frozenset({"CHECKS_RUNNING"}),
    "retrigger_policy_bot": frozenset({"POLICY_PASSED", "POLICY_FAILED"}),
    "retrigger_approver_bot": frozenset({"APPROVED"}),
    "retrigger_automerge_bot": frozenset({"MERGING", "MERGED"}),
    "retrigger_sod_check": frozenset({"POLICY_PASSED", "POLICY_FAILED"}),
    "close_and_reopen": frozenset(),
}
_ROAD: Final[tuple[State, ...]] = (
    "CREATED", "CHECKS_RUNNING", "CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED",
    "APPROVED", "MERGING", "MERGED",
)  # fmt: skip
_IMPLIED: Final = frozenset(
    {
        ("CREATED", "CHECKS_PASSED"),
        ("CREATED", "CHECKS_FAILED"),
        ("CHECKS_PASSED", "POLICY_PASSED"),
        ("CHECKS_PASSED", "POLICY_FAILED"),
        *(
            (state, event)
            for state in (
                "CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED", "POLICY_FAILED", "APPROVED"
            )
            for event in ("CHECKS_STARTED", "CHECKS_FAILED")
        ),
    }
)  # fmt: skip
"""Events that imply states which nobody told of, or that lead back."""
_ALWAYS: Final = frozenset({"PR_CLOSED", "PR_MERGED", "MERGE_SUCCEEDED"})
_TOLD_SECONDS: Final = 8.0
_PROBE_SECONDS: Final = 45.0
"""Longer than any action takes."""


class TowRules:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.circuits: dict[str, dict[str, Any]] = {}
        """The breakers' documents."""
        self.openings: set[tuple[str, int]] = set()

    # ------------------------------------------------------------------ records

    def follows(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        self._starts_anew(name, before, after, new)
        for event in new:
            if event.payload.get("anomaly"):
                told = (str(event.payload.get("from")), event.event_type)
                fits = told in _IMPLIED or event.event_type in _ALWAYS
                self._stage.expect(not fits, f"{name} did not believe {told}")
            if event.event_type == OUTCOME and event.payload.get("outcome") == "unavailable":
                self._nobody_answered(name, before.intent, event)
        if before.state == "NEEDS_INTERVENTION" != after.state:
            over = after.state in ("MERGED", "CLOSED")
            asked = _by_person(before.intent) or _by_person(after.intent)
            called = any(_is_persons(event) for event in new)
            self._stage.expect(
                over or asked or called, f"{name} left its person for {after.state} by itself"
            )

    def _starts_anew(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        """A count falls by a try that is given back, or for a state that was reached."""
        reached = {state for event in new for state in _reached(before, event)}
        pushed = any(event.payload.get("by_person") for event in new)
        returned = {
            event.payload.get("strategy") for event in new if event.payload.get("budget_returned")
        }
        for strategy in STRATEGIES:
            fell = after.counts[strategy] < before.counts[strategy]
            anew = bool(_RESET_BY[strategy] & reached)
            anew |= pushed and strategy != "close_and_reopen"
            self._stage.expect(
                not fell or anew or strategy in returned,
                f"{name} forgot its tries of {strategy} at {sorted(reached)}",
            )

    # ------------------------------------------------------------------ breakers

    def circuit_changed(self, name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        """A probe ends with the action that it was for."""
        self.circuits[name] = after
        if after["opened_us"]:
            self.openings.add((name, int(after["opening_us"])))
        probe, node = after["probe"], current.get()
        if not probe or probe == before["probe"] or node is WORLD:
            return
        mark, given_at = self._mark(node), self._stage.loop.time()

        def look() -> None:
            """Who was not told that it has the probe does not give it back: its time runs out."""
            well = self._mark(node) == mark and node.troubled_at < given_at
            left = self.circuits[name]["probe"] == probe and well
            self._stage.expect(not left, f"{name}: nobody gave the probe {probe} back")

        on_node(WORLD, self._stage.loop.call_later, _PROBE_SECONDS, look)

    def _nobody_answered(self, name: str, intent: Intent | None, event: PullEvent) -> None:
        """That a call was not answered is told to the breaker, soon, unless it is open already.

        Not by one that has just slept: it may have lost its turn to sweep.
        """
        node, circuit = current.get(), self.circuits.get(f"breaker {GLOBAL}")
        if intent is None or intent.by != BY_SWEEP or not event.key.endswith("so far"):
            return
        if node is WORLD or (circuit is not None and circuit["opened_us"]):
            return
        well_since = max(node.troubled_at, node.paused_until)
        if self._stage.loop.time() - well_since < _TOLD_SECONDS:
            return
        mark, failed = self._mark(node), self._failed()

        def look() -> None:
            silent = self._mark(node) == mark and self._failed() == failed
            self._stage.expect(not silent, f"{name}: nobody told the breaker that nobody answered")

        on_node(WORLD, self._stage.loop.call_later, _TOLD_SECONDS, look)

    def _mark(self, node: Node) -> tuple[object, ...]:
        """The same again if it could go on meanwhile, and reach its store."""
        stage = self._stage
        own, down = f"{node.name}/sql ", stage.sql.down_until > stage.loop.time()
        trouble = sum(one.startswith((own, "plan/")) for one in stage.weather.fired)
        return node.alive, node.pauses, trouble, stage.loop.time() if down else 0.0

    def _failed(self) -> tuple[int, ...]:
        """How often the breaker of all opened, and the last failures that it counts."""
        circuit = self.circuits.get(f"breaker {GLOBAL}")
        if circuit is None:
            return (0,)
        failed = [(bucket[0], bucket[2]) for bucket in circuit["buckets"] if bucket[2]]
        return int(circuit["trips"]), *max(failed, default=())

    def told_once(self) -> None:
        """People hear of each opening of a breaker once."""
        query = "SELECT params FROM towline_jobs WHERE kind = 'notify'"
        texts = [row[0] for row in self._stage.server.db.execute(query)]
        opened = Counter(name.removeprefix("breaker ") for name, _ in self.openings)
        for name in self.circuits:
            place = name.removeprefix("breaker ")
            told = sum(f"Breaker: {place}\\n" in text for text in texts)
            most = opened[place]
            self._stage.expect(told <= most, f"{told} messages on {most} openings of {place}")


def _by_person(intent: Intent | None) -> bool:
    return intent is not None and intent.by != BY_SWEEP


def _is_persons(event: PullEvent) -> bool:
    ordered = event.event_type == OUTCOME and event.payload.get("by") != BY_SWEEP
    return ordered or bool(event.payload.get("by_person"))


def _reached(before: PullRecord, event: PullEvent) -> set[str]:
    """The states that an event tells of, and those on the way to them."""
    payload = event.payload
    if payload.get("anomaly") or payload.get("repeated"):
        return set()
    if payload.get("native"):
        return {event.event_type}
    if event.event_type == "APPROVAL_GRANTED" and payload.get("caught_up"):
        return {"APPROVED"}
    if event.event_type == "STATE_DRIFT_CORRECTED":
        return _on_the_way(before, str(payload["actual"]), moved="before" in payload)
    if event.event_type == "BRANCH_UPDATED" and event.source == "reconciler":
        return _on_the_way(before, str(payload["to"]), moved=True)
    path: Any = payload.get("path", ())
    return {str(payload.get("to")), *map(str, path)}


def _on_the_way(before: PullRecord, actual: str, *, moved: bool) -> set[str]:
    places = {state: place for place, state in enumerate(_ROAD)}
    places |= {"CHECKS_FAILED": 1, "POLICY_FAILED": 3}
    if before.state not in places or actual not in places:
        return {actual}
    first = 0 if moved else places[before.state]
    last = next(place for state, place in places.items() if state == actual)
    return {*_ROAD[first + 1 : last], actual}
