"""Each room has one door on each of the five ways that `make walk` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.walk import WAYS, walk
from towline.sandbox.choice import Choice

_START = "a start of a fix is planned with the delivery, and made once its events are applied"
_STORED = "GitHub gets its answer once the delivery is stored; a worker reads it back afterwards"
_QUEUED = "a command is queued when it is read, and a worker carries it out afterwards"
_TRACKED = "the tracker reads a command; whether the state allows it is a question to `pulls` again"
_BELL = "each room that queues a job wakes the workers itself"
_FORGE = "a room that reads or writes at the forge does so itself; Jenkins has the same HTTP client"
_GIT = "git's folder is named by the settings, so that the wiring makes it at the first job"

AGAIN: dict[str, dict[str, tuple[set[str], str]]] = {
    "webhook": {
        "inbox": ({"app", "jobs"}, _STORED),
    },
    "sweep": {
        "forges": ({"integrations", "reconciler", "remediation"}, _FORGE),
    },
    "fix": {
        "fix": ({"app", "inbox"}, _START),
        "forges": ({"fix", "git", "inbox"}, _FORGE),
        "git": ({"app", "fix"}, _GIT),
        "inbox": ({"app", "jobs"}, _STORED),
    },
    "comment": {
        "commands": ({"jobs", "pulls"}, _QUEUED),
        "forges": ({"commands", "inbox", "integrations", "remediation"}, _FORGE),
        "inbox": ({"app", "jobs"}, _STORED),
        "jobs": ({"commands", "inbox"}, _BELL),
        "pulls": ({"commands", "inbox"}, _TRACKED),
    },
    "library": {},
}
"""For each way the rooms that more than one room calls: which rooms they are, and why.

A room that one room calls needs no entry. Take an entry out, or a caller out of it, as soon as the
test says that it is not needed any more.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WAYS if name != "fix"])
def test_a_room_is_entered_once(name: str, tmp_path: Path) -> None:
    """On its way through the program, a cause enters each room from one other room."""
    _one_door(name, tmp_path)


@pytest.mark.slow
def test_a_fix_run_enters_a_room_once(isolation: Choice, tmp_path: Path) -> None:
    """From the failed check to the pull request, each room is entered from one other room."""
    _one_door("fix", tmp_path)


def _one_door(name: str, folder: Path) -> None:
    doors = walk(name, folder).doors(library=name == "library")
    again = {room: callers for room, callers in doors.items() if len(callers) > 1}
    allowed = {room: callers for room, (callers, _) in AGAIN[name].items()}
    assert again == allowed, f"AGAIN[{name!r}] in {__file__} says otherwise"
