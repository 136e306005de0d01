"""Which commands people may give, and in which states. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from towline.forges.base import Forge
from towline.forges.credentials import no_credentials
from towline.pulls.budgets import Strategy
from towline.pulls.lifecycle import STATES, TERMINAL, State
from towline.slash_commands import Command, needs_forge
from towline_once.errors import Conflict, Rejected


def _states(*names: State) -> frozenset[State]:
    return frozenset(names)


_LIVE: Final = _states(*STATES) - TERMINAL
_CHECKED: Final = _states(
    "CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED", "POLICY_FAILED", "APPROVED", "MERGING"
)
_STUCK: Final = _states("NEEDS_INTERVENTION")

ALLOWED_IN: Final[Mapping[Command, frozenset[State]]] = {
    "/rebuild": _LIVE - _states("CHECKS_RUNNING", "MERGING"),
    "/recheck-policy": (_CHECKED - _states("MERGING")) | _STUCK,
    "/recheck-sod": _states("POLICY_EVALUATING", "POLICY_FAILED") | _STUCK,
    "/recheck-approval": _states("POLICY_PASSED", "APPROVED") | _STUCK,
    "/merge": _states("APPROVED", "MERGING") | _STUCK,
    "/update-branch": _LIVE,
    "/close-and-reopen": _LIVE,
    "/cancel": _LIVE,
    "/why": _states(*STATES),
}
STRATEGY_OF: Final[Mapping[Command, Strategy]] = {
    "/rebuild": "rebuild",
    "/recheck-policy": "retrigger_policy_bot",
    "/recheck-sod": "retrigger_sod_check",
    "/recheck-approval": "retrigger_approver_bot",
    "/merge": "retrigger_automerge_bot",
    "/update-branch": "branch_update",
    "/close-and-reopen": "close_and_reopen",
}


def refusal(command: Command, state: State) -> str | None:
    """Why a command does not fit a state; None if it does."""
    if state in ALLOWED_IN[command]:
        return None
    fitting = ", ".join(sorted(ALLOWED_IN[command], key=STATES.index))
    return f"{command} does nothing in state {state}; it is for {fitting}"


class NoCredentials(Conflict):
    """The command needs a forge that this service has no token for."""


def lacking(command: Command, forge: str, forges: Mapping[str, Forge]) -> str | None:
    """Why a command cannot be carried out at this forge; None if it can."""
    if forge in forges or not needs_forge(command):
        return None
    return f"{command} cannot be carried out: {no_credentials(forge)}"


class UnknownCommand(Rejected):
    """There is no such command."""


class UnknownPull(Rejected):
    """It is not under tow."""


class NotNow(Conflict):
    """The command does not fit the state that the pull request is in."""
