"""How long a pull request may stay in a state before the reconciler looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from towline.pulls.lifecycle import State

Thresholds: TypeAlias = Mapping[State, float]

THRESHOLD_SECONDS: Final[Thresholds] = {
    "CREATED": 5 * 60,
    "CHECKS_RUNNING": 60 * 60,
    "CHECKS_PASSED": 30 * 60,
    "CHECKS_FAILED": 30 * 60,
    "POLICY_EVALUATING": 30 * 60,
    "POLICY_PASSED": 15 * 60,
    "POLICY_FAILED": 30 * 60,
    "APPROVED": 10 * 60,
    "MERGING": 5 * 60,
}
"""States that are missing wait for a person, or for nothing."""


def is_stale(
    state: State, since: float, now: float, thresholds: Thresholds = THRESHOLD_SECONDS
) -> bool:
    """Whether nothing happened for longer than the state allows; times in seconds."""
    limit = thresholds.get(state)
    return limit is not None and now - since > limit
