"""Logs of pull requests, written by hand in minutes."""

from __future__ import annotations

from typing import Any

from towline.pulls.model import PullEvent

MINUTE = 60_000_000


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
