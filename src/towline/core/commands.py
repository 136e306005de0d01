"""What people may order: slash commands, and in which states each of them makes sense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from towline.core.budgets import Strategy
from towline.core.lifecycle import STATES, TERMINAL, State

Command: TypeAlias = Literal[
    "/rebuild",
    "/recheck-policy",
    "/recheck-sod",
    "/recheck-approval",
    "/merge",
    "/update-branch",
    "/close-and-reopen",
    "/cancel",
    "/why",
]
COMMANDS: Final[tuple[Command, ...]] = get_args(Command)


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
NEEDS_NO_FORGE: Final = frozenset({"/hold", "/unhold", "/priority", "/requeue"})
"""These change what Towline knows, and nothing at the forge."""

_LINE: Final = re.compile(r"/[a-z][a-z-]{1,40}(?=\s|$)")
_MOST_LINES: Final = 200


class Parsed(NamedTuple):
    """Commands in the order they were given, each once, and what looked like one but is none."""

    commands: tuple[Command, ...]
    unknown: tuple[str, ...]


def parse(text: str) -> Parsed:
    """The commands of a comment: each at the start of a line, outside of quotes and code."""
    commands: list[Command] = []
    unknown: list[str] = []
    fence = ""
    for line in text.splitlines()[:_MOST_LINES]:
        marker = line.lstrip()[:3]
        if marker in ("```", "~~~"):
            fence = "" if fence == marker else fence or marker
            continue
        found = None if fence or line.startswith(("    ", "\t")) else _LINE.match(line.lstrip())
        if found is None:
            continue
        word = found[0]
        known = next((command for command in COMMANDS if command == word), None)
        if known is not None and known not in commands:
            commands.append(known)
        elif known is None and word not in unknown:
            unknown.append(word)
    return Parsed(tuple(commands), tuple(unknown))


def needs_forge(command: str) -> bool:
    """Whether it takes credentials for the forge to carry a command out."""
    return command not in NEEDS_NO_FORGE


def refusal(command: Command, state: State) -> str | None:
    """Why a command does not fit a state; None if it does."""
    if state in ALLOWED_IN[command]:
        return None
    fitting = ", ".join(sorted(ALLOWED_IN[command], key=STATES.index))
    return f"{command} does nothing in state {state}; it is for {fitting}"
