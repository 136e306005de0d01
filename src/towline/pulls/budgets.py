"""How often each remedy may be tried on a pull request, and when its count starts anew.

A count starts anew when an event shows progress, and a lifetime limit ends what would go round for
ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, get_args

from towline.pulls.lifecycle import State

Strategy: TypeAlias = Literal[
    "rebuild",
    "branch_update",
    "retrigger_policy_bot",
    "retrigger_approver_bot",
    "retrigger_automerge_bot",
    "retrigger_sod_check",
    "close_and_reopen",
]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)

Counts: TypeAlias = Mapping[Strategy, int]

MAX_TRIES: Final[Counts] = {
    "rebuild": 3,
    "branch_update": 2,
    "retrigger_policy_bot": 2,
    "retrigger_approver_bot": 2,
    "retrigger_automerge_bot": 2,
    "retrigger_sod_check": 1,
    "close_and_reopen": 1,
}
LIFETIME_FACTOR: Final = 4
"""A count may start anew, but over its life a pull request gets so many times each budget."""

_RESET_BY: Final[Mapping[Strategy, frozenset[State]]] = {
    "rebuild": frozenset({"CHECKS_PASSED"}),
    "branch_update": frozenset({"CHECKS_RUNNING"}),
    "retrigger_policy_bot": frozenset({"POLICY_PASSED", "POLICY_FAILED"}),
    "retrigger_approver_bot": frozenset({"APPROVED"}),
    "retrigger_automerge_bot": frozenset({"MERGING", "MERGED"}),
    "retrigger_sod_check": frozenset({"POLICY_PASSED", "POLICY_FAILED"}),
    "close_and_reopen": frozenset(),
}
"""Only a state that was observed resets a count, never one that a remedy hopes for."""


def none_used() -> dict[Strategy, int]:
    return dict.fromkeys(STRATEGIES, 0)


def spent(counts: Counts, strategy: Strategy) -> dict[Strategy, int]:
    """One more try, counted before it is made."""
    return {**none_used(), **counts, strategy: counts.get(strategy, 0) + 1}


def after_move(
    counts: Counts, path: Iterable[State], substatus: str | None = None
) -> dict[Strategy, int]:
    """The counts of a pull request that was seen to reach these states, the last as this.

    Separation of duties that fails again after its retry is where it was: nothing starts anew.
    """
    reached = set(path)
    fresh = {strategy for strategy in STRATEGIES if _RESET_BY[strategy] & reached}
    if substatus == "SOD_FAILURE" and "POLICY_PASSED" not in reached:
        fresh.discard("retrigger_sod_check")
    return {
        strategy: 0 if strategy in fresh else counts.get(strategy, 0) for strategy in STRATEGIES
    }


def exhausted(
    strategy: Strategy, counts: Counts, lifetime: Counts, limits: Counts = MAX_TRIES
) -> str | None:
    """Why a strategy may not be tried again; None if it may."""
    used, most = counts.get(strategy, 0), limits[strategy]
    if used >= most:
        return f"Retry budget exhausted for {strategy} ({used}/{most})"
    ever, cap = lifetime.get(strategy, 0), most * LIFETIME_FACTOR
    if ever >= cap:
        return f"Lifetime cap reached for {strategy} ({ever}/{cap})"
    return None


_REBUILDS: Final[frozenset[State]] = frozenset({"CHECKS_RUNNING", "CHECKS_FAILED"})


def oscillates(states: Iterable[State], times: int = 3) -> tuple[State, ...] | None:
    """The cycle of states that a history ends with, if it was gone through `times` times.

    Builds that fail one after the other are none: the budget of rebuilds ends those.
    """
    history = list(states)
    for length in range(2, len(history) // times + 1):
        cycle = history[-length:]
        if history[-length * times :] == cycle * times and len(set(cycle)) > 1:
            return None if set(cycle) == _REBUILDS else tuple(cycle)
    return None
