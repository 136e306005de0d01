"""The life of a pull request: every line of the transition map, and whatever is not in it."""

from __future__ import annotations

import itertools

import pytest

from towline.pulls.lifecycle import STATES, TERMINAL, WAITING_FOR, Happening, State, diagram, move

LIVE: list[State] = [state for state in STATES if state not in TERMINAL]
HAPPENINGS: list[Happening] = [
    "PR_OPENED", "PR_CLOSED", "PR_MERGED", "CHECKS_STARTED", "CHECKS_PASSED", "CHECKS_FAILED",
    "POLICY_STARTED", "POLICY_PASSED", "POLICY_FAILED", "APPROVAL_GRANTED", "MERGE_ATTEMPTED",
    "MERGE_SUCCEEDED", "MERGE_FAILED", "BRANCH_UPDATED", "ESCALATED_NEEDS_INTERVENTION",
]  # fmt: skip

MAP: list[tuple[State, Happening, State]] = [
    ("CREATED", "CHECKS_STARTED", "CHECKS_RUNNING"),
    ("CHECKS_RUNNING", "CHECKS_PASSED", "CHECKS_PASSED"),
    ("CHECKS_RUNNING", "CHECKS_FAILED", "CHECKS_FAILED"),
    ("CHECKS_FAILED", "CHECKS_STARTED", "CHECKS_RUNNING"),
    ("CHECKS_PASSED", "POLICY_STARTED", "POLICY_EVALUATING"),
    ("POLICY_EVALUATING", "POLICY_PASSED", "POLICY_PASSED"),
    ("POLICY_EVALUATING", "POLICY_FAILED", "POLICY_FAILED"),
    ("POLICY_FAILED", "POLICY_STARTED", "POLICY_EVALUATING"),
    ("POLICY_PASSED", "APPROVAL_GRANTED", "APPROVED"),
    ("APPROVED", "MERGE_ATTEMPTED", "MERGING"),
    ("MERGING", "MERGE_SUCCEEDED", "MERGED"),
    ("MERGING", "BRANCH_UPDATED", "CHECKS_RUNNING"),
    ("MERGING", "PR_CLOSED", "CLOSED"),
    *((state, "PR_CLOSED", "CLOSED") for state in LIVE),
    *(
        (state, "ESCALATED_NEEDS_INTERVENTION", "NEEDS_INTERVENTION")
        for state in LIVE
        if state != "NEEDS_INTERVENTION"
    ),
    *((state, "BRANCH_UPDATED", "CHECKS_RUNNING") for state in LIVE),
    *((state, "PR_MERGED", "MERGED") for state in LIVE),
    *((state, "MERGE_SUCCEEDED", "MERGED") for state in LIVE),
]
PAST: list[State] = [
    "CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED", "POLICY_FAILED", "APPROVED",
]  # fmt: skip
MAP += [(state, "CHECKS_STARTED", "CHECKS_RUNNING") for state in PAST]
MAP += [(state, "CHECKS_FAILED", "CHECKS_FAILED") for state in PAST]
IMPLIED: list[tuple[State, Happening, tuple[State, ...]]] = [
    ("CREATED", "CHECKS_PASSED", ("CHECKS_RUNNING", "CHECKS_PASSED")),
    ("CREATED", "CHECKS_FAILED", ("CHECKS_RUNNING", "CHECKS_FAILED")),
    ("CHECKS_PASSED", "POLICY_PASSED", ("POLICY_EVALUATING", "POLICY_PASSED")),
    ("CHECKS_PASSED", "POLICY_FAILED", ("POLICY_EVALUATING", "POLICY_FAILED")),
    ("APPROVED", "PR_MERGED", ("MERGING", "MERGED")),
]


@pytest.mark.parametrize(("state", "happening", "target"), MAP)
def test_a_line_of_the_map(state: State, happening: Happening, target: State) -> None:
    """Each transition of the specification is taken."""
    found = move(state, happening, by_person=True)
    assert (found.verdict, found.target, found.path[-1]) == ("moved", target, target)


@pytest.mark.parametrize(("state", "happening", "path"), IMPLIED)
def test_states_that_an_event_implies_are_passed_through(
    state: State, happening: Happening, path: tuple[State, ...]
) -> None:
    """One move, with its path."""
    assert move(state, happening) == ("moved", state, path[-1], path)


def test_whatever_else_changes_nothing() -> None:
    """Over all states and events: moved if and only if the map or a ruling has it."""
    listed = {line[:2] for line in MAP} | {line[:2] for line in IMPLIED}
    for state, happening in itertools.product(STATES, HAPPENINGS):
        found = move(state, happening, by_person=True)
        assert (found.verdict == "moved") == ((state, happening) in listed), (state, happening)
        if found.verdict != "moved":
            assert (found.target, found.path) == (state, ())


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize("happening", HAPPENINGS)
def test_an_ended_life_takes_no_events(state: State, happening: Happening) -> None:
    """They are late, also a merge of what was closed."""
    assert move(state, happening).verdict == "late"


@pytest.mark.parametrize(
    ("state", "happening"),
    [
        ("CREATED", "PR_OPENED"),
        ("CHECKS_RUNNING", "CHECKS_STARTED"),
        ("CHECKS_FAILED", "CHECKS_FAILED"),
        ("POLICY_EVALUATING", "POLICY_STARTED"),
        ("APPROVED", "APPROVAL_GRANTED"),
        ("NEEDS_INTERVENTION", "ESCALATED_NEEDS_INTERVENTION"),
    ],
)
def test_a_repeat_is_only_logged(state: State, happening: Happening) -> None:
    """The state that it is in already."""
    assert move(state, happening).verdict == "repeated"


def test_only_a_persons_push_calls_back_from_intervention() -> None:
    """A machine's own push does not."""
    assert move("NEEDS_INTERVENTION", "BRANCH_UPDATED").verdict == "anomaly"
    assert move("NEEDS_INTERVENTION", "BRANCH_UPDATED", by_person=True).target == "CHECKS_RUNNING"


@pytest.mark.parametrize("happening", ["CHECKS_STARTED", "CHECKS_PASSED", "CHECKS_FAILED"])
def test_a_check_while_the_forge_merges_is_noted(happening: Happening) -> None:
    """The forge judges the checks itself, and its answer moves the state."""
    assert move("MERGING", happening) == ("noted", "MERGING", "MERGING", ())


def test_a_failed_merge_is_noted() -> None:
    """What follows tells the state: new commits, a close, or nothing."""
    assert move("MERGING", "MERGE_FAILED") == ("noted", "MERGING", "MERGING", ())


def test_the_diagram_has_every_state_and_step() -> None:
    """It is drawn from the table, so that it cannot differ from it."""
    drawn = diagram()
    assert all(state in drawn for state in STATES)
    assert set(WAITING_FOR) == set(STATES)
    later = [line for line in MAP if line[1].startswith("CHECKS_")]
    for state, happening, target in [*MAP[:10], *later]:
        assert f"{state} --> {target}" in drawn, happening
