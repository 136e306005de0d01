"""How well decisions that were only observed agree with what people did afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.pulls.model import PullEvent
from towline.reconciler.decision import meant_by

OBSERVED: Final = "OBSERVED_DECISION"
Agreement: TypeAlias = Literal["agreed", "disagreed", "open"]

_BY_HAND: Final[Mapping[str, frozenset[str]]] = {
    "RETRY_CHECKS": frozenset({"CHECKS_STARTED"}),
    "UPDATE_BRANCH": frozenset({"BRANCH_UPDATED"}),
    "CLOSE_AND_REOPEN": frozenset({"PR_CLOSED"}),
    "RETRIGGER_POLICY_BOT": frozenset({"POLICY_STARTED", "POLICY_PASSED", "POLICY_FAILED"}),
    "RETRIGGER_SOD_CHECK": frozenset({"POLICY_STARTED", "POLICY_PASSED", "POLICY_FAILED"}),
    "RETRIGGER_APPROVER_BOT": frozenset({"APPROVAL_GRANTED"}),
    "RETRIGGER_MERGE": frozenset({"MERGE_ATTEMPTED", "MERGE_SUCCEEDED", "PR_MERGED"}),
    "NEEDS_INTERVENTION": frozenset({"PR_CLOSED", "BRANCH_UPDATED", "COMMAND_RECEIVED"}),
}
"""What shows that people did, or had done, what was decided."""
_TELLING: Final = frozenset().union(*_BY_HAND.values()) | {"CHECKS_PASSED", "CHECKS_FAILED"}


class Agreed(NamedTuple):
    """Of one rule. `open` are those after which nothing has happened within the window."""

    agreed: int = 0
    disagreed: int = 0
    open: int = 0

    @property
    def share(self) -> float | None:
        judged = self.agreed + self.disagreed
        return self.agreed / judged if judged else None


def compare(decision: PullEvent, afterwards: Sequence[PullEvent], window_us: int) -> Agreement:
    """By the first thing that happened to it within the window."""
    wanted = _BY_HAND.get(str(decision.payload.get("action")), frozenset())
    for event in afterwards:
        if event.at_us > decision.at_us + window_us:
            return "open"
        kind = meant_by(event)
        if kind in _TELLING and not event.payload.get("anomaly"):
            return "agreed" if kind in wanted else "disagreed"
    return "open"


def add_log(totals: dict[str, Agreed], log: Sequence[PullEvent], window_us: int) -> None:
    """Count the decisions in the log of one pull request, oldest first, by rule."""
    for at, event in enumerate(log):
        if event.event_type != OBSERVED:
            continue
        rule = str(event.payload.get("rule"))
        so_far = totals.get(rule, Agreed())
        verdict = compare(event, log[at + 1 :], window_us)
        totals[rule] = so_far._replace(**{verdict: getattr(so_far, verdict) + 1})
