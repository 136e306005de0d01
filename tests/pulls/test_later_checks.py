"""Checks of one head that begin, or fail, after the others have passed: the way back, and on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.pulls.pull_words import (
    CONTEXT,
    PERSON,
    after,
    check,
    entry,
    policy,
    pull,
    pushed,
    queue,
    review,
    snapshot,
    suite,
    told,
)
from towline.events import CheckChanged, Event
from towline.pulls.budgets import STRATEGIES, Strategy, oscillates
from towline.pulls.drift import correct
from towline.pulls.lifecycle import State
from towline.pulls.model import PullRecord
from towline.pulls.signals import Signals
from towline.pulls.transitions import Context, decide
from towline.reconciler.decision import history_of

GREEN = check("success")
USED: dict[Strategy, int] = dict.fromkeys(STRATEGIES, 1)


def licence(conclusion: str = "pending", at: float = 50, **fields: Any) -> CheckChanged:
    """A check of another App."""
    known = {"name": "licence", "run_id": "200", "suite_id": "2", "app": "legal"}
    return check(conclusion, at, **known | fields)


def reached(*words: Event, context: Context = CONTEXT) -> PullRecord:
    """A pull request whose build is green, and these words."""
    record, _ = after(None, [pull(), GREEN, *words], context)
    assert record is not None
    return record


APPROVED = (policy("success"), review())
WAYS: list[tuple[State, tuple[Event, ...]]] = [
    ("CHECKS_PASSED", ()),
    ("POLICY_EVALUATING", (policy("pending"),)),
    ("POLICY_PASSED", (policy("success"),)),
    ("POLICY_FAILED", (policy("failure"),)),
    ("APPROVED", APPROVED),
]


@pytest.mark.parametrize(("state", "words"), WAYS)
@pytest.mark.parametrize(
    ("late", "line", "target"),
    [
        (licence(), "CHECKS_STARTED", "CHECKS_RUNNING"),
        (licence("failure"), "CHECKS_FAILED", "CHECKS_FAILED"),
        (check("pending", 50, run_id="101"), "CHECKS_STARTED", "CHECKS_RUNNING"),
        (check("failure", 50, run_id="101"), "CHECKS_FAILED", "CHECKS_FAILED"),
    ],
)
def test_a_later_check_leads_back(
    state: State, words: tuple[Event, ...], late: Event, line: str, target: State
) -> None:
    """At once, as a transition: a new check, or one that runs again."""
    record = reached(*words)
    assert record.state == state
    found = told(record, late)
    assert found.record.state == target
    assert [(one.event_type, one.payload.get("anomaly")) for one in found.events] == [(line, None)]
    assert found.events[0].payload["path"] == [target]


@pytest.mark.parametrize(("state", "words"), WAYS)
def test_it_goes_on_where_it_was_when_all_pass_again(
    state: State, words: tuple[Event, ...]
) -> None:
    """Policy and approval stay known; one event has the path, and no bot says a word."""
    back = told(reached(*words), licence()).record
    found = told(back, licence("success", 51))
    assert found.record.state == ("CHECKS_PASSED" if state == "POLICY_FAILED" else state)
    assert [one.event_type for one in found.events] == ["CHECKS_PASSED"]
    roads = {
        "POLICY_EVALUATING": ["POLICY_EVALUATING"],
        "POLICY_PASSED": ["POLICY_EVALUATING", "POLICY_PASSED"],
        "APPROVED": ["POLICY_EVALUATING", "POLICY_PASSED", "APPROVED"],
    }
    assert found.events[0].payload["path"] == ["CHECKS_PASSED", *roads.get(state, [])]
    assert found.events[0].payload["to"] == found.record.state
    assert found.record.facts.reached is None


def test_a_failure_in_between_forgets_nothing() -> None:
    """Also if the check fails, and is run again by a person."""
    words = [licence("failure"), licence("pending", 60, run_id="201")]
    record, lines = after(reached(*APPROVED), [*words, licence("success", 70, run_id="201")])
    assert record is not None
    assert (record.state, lines) == (
        "APPROVED", ["CHECKS_FAILED", "CHECKS_STARTED", "CHECKS_PASSED"],
    )  # fmt: skip


def test_an_approval_that_was_dismissed_meanwhile_is_not_revived() -> None:
    """Only what still holds counts."""
    record, _ = after(reached(*APPROVED), [licence(), review("dismissed", 55)])
    assert record is not None
    assert told(record, licence("success", 60)).record.state == "POLICY_PASSED"


def test_a_policy_bot_that_looks_again_has_the_last_word() -> None:
    """It took its word back while the check ran: the approval waits for it."""
    record, _ = after(reached(*APPROVED), [licence(), policy("pending", 55)])
    assert record is not None
    evaluating = told(record, licence("success", 60)).record
    assert evaluating.state == "POLICY_EVALUATING"
    assert told(evaluating, policy("success", 70)).record.state == "APPROVED"


def test_what_came_while_the_check_ran_has_a_line_of_its_own() -> None:
    """An approval that was never applied is not hidden in the path of another event."""
    record, _ = after(reached(policy("success")), [licence(), review(at=55)])
    assert record is not None
    found = told(record, licence("success", 60))
    assert found.record.state == "APPROVED"
    assert [one.event_type for one in found.events] == ["CHECKS_PASSED", "APPROVAL_GRANTED"]


def test_our_own_judgement_stays_known() -> None:
    """Where Towline is the policy bot, the forge shows no sign of it."""
    judged, _ = after(reached()._replace(state="POLICY_PASSED"), [review()])
    assert judged is not None
    assert judged.state == "APPROVED"
    back = told(judged, licence()).record
    assert told(back, licence("success", 60)).record.state == "APPROVED"


def test_a_push_forgets_what_was_reached() -> None:
    """It resets as ever: the new head has no approval."""
    back = told(reached(*APPROVED), licence()).record
    record, _ = after(back, [pushed(60), replace(GREEN, head_sha="b" * 40, occurred_at=70.0)])
    assert record is not None
    assert (record.state, record.facts.reached) == ("CHECKS_PASSED", None)


def test_a_person_is_asked_until_a_person_acts() -> None:
    """Nothing leaves NEEDS_INTERVENTION because a check runs or fails."""
    waiting = reached()._replace(state="NEEDS_INTERVENTION")
    for late in (licence(), licence("failure")):
        assert told(waiting, late).record.state == "NEEDS_INTERVENTION"


def test_a_merge_under_way_is_the_forges_matter() -> None:
    """A check that begins meanwhile is noted; no anomaly, and no way back."""
    merging = reached(*APPROVED, queue())
    found = told(merging, licence())
    assert found.record.state == "MERGING"
    assert [(one.event_type, one.payload.get("anomaly")) for one in found.events] == [
        ("CHECKS_STARTED", None)
    ]


def test_a_suite_that_was_only_requested_is_no_check() -> None:
    """GitHub opens one for each App, and most never run; once a check of it is heard of it is."""
    record = reached()
    requested = decide(record, suite("queued", 50, suite_id="2"), CONTEXT, entry(after=100))
    assert requested is not None
    assert (requested.record.state, requested.events) == ("CHECKS_PASSED", ())
    assert told(requested.record, licence()).record.state == "CHECKS_RUNNING"


@pytest.mark.parametrize("signals", [Signals(required=("build",)), Signals(ignored=("licence",))])
def test_a_check_that_does_not_count_changes_nothing(signals: Signals) -> None:
    """Where the required checks are named, or this one is ignored."""
    context = replace(CONTEXT, signals=signals)
    for late in (licence(), licence("failure")):
        found = told(reached(*APPROVED, context=context), late, context)
        assert (found.record.state, found.events) == ("APPROVED", ())


@pytest.mark.parametrize(
    "words",
    [
        [licence("success", 52), licence("pending", 50)],
        [licence("success", 50), licence("pending", 50)],
        [licence("success", 52), licence("pending", 50, status="queued")],
    ],
)
def test_a_beginning_that_is_told_after_the_end_opens_nothing_again(words: list[Event]) -> None:
    """`created` and `completed` of a run come in either order, often within one second."""
    record, _ = after(reached(*APPROVED), words)
    assert record is not None
    assert record.state == "APPROVED"


# ---------------------------------------------------------------------- looks


@pytest.mark.parametrize(("state", "words"), WAYS)
@pytest.mark.parametrize(
    ("late", "target"),
    [(licence(), "CHECKS_RUNNING"), (licence("failure"), "CHECKS_FAILED")],
)
def test_a_look_leads_to_the_same_state(
    state: State, words: tuple[Event, ...], late: Event, target: State
) -> None:
    """There and back, as webhooks do, and nothing is spent or given back for it."""
    record = reached(*words)._replace(counts=USED)
    seen = correct(record, snapshot(pull(), GREEN, *words, late), CONTEXT, record.updated_us + 1)
    assert seen is not None
    assert (seen.record.state, seen.record.counts) == (target, USED)
    by_hook = told(record, late).record
    assert by_hook.state == target
    assert (by_hook.path, by_hook.facts.reached) == (seen.record.path, seen.record.facts.reached)
    again = snapshot(pull(), GREEN, *words, licence("success", 51))
    forth = correct(seen.record, again, CONTEXT, record.updated_us + 2)
    assert forth is not None
    assert forth.record.state == told(by_hook, licence("success", 51)).record.state


def test_a_look_keeps_our_own_judgement() -> None:
    """The forge cannot show it, and it held when the later check began."""
    back = told(reached()._replace(state="POLICY_PASSED"), licence()).record
    look = snapshot(pull(), GREEN, licence("success", 51))
    seen = correct(back, look, CONTEXT, back.updated_us + 1)
    assert seen is not None
    assert seen.record.state == "POLICY_PASSED"


# ---------------------------------------------------------------------- budgets and circles


def test_checks_that_begin_one_after_the_other_are_no_circle() -> None:
    """Whatever others tell of: the path is as long as that of one run of checks."""
    record = reached(*APPROVED)
    for place in range(8):
        name, at = f"app-{place}", 50 + 10 * place
        words = [check("pending", at, name), check("success", at + 5, name)]
        for word in words:
            record = told(record, word).record
        assert record.state == "APPROVED"
    assert oscillates(record.path) is None
    assert record.path == reached(*APPROVED).path


def test_a_check_that_fails_again_after_each_rebuild_is_one() -> None:
    """It passes, fails, is built again and passes: the third time is a person's matter."""
    record: PullRecord | None = reached()
    for place in range(3):
        at = 50 + 30 * place
        words = [licence("pending", at, run_id=f"{200 + 2 * place}"),
                 licence("failure", at + 5, run_id=f"{200 + 2 * place}"),
                 licence("pending", at + 10, run_id=f"{201 + 2 * place}"),
                 licence("success", at + 15, run_id=f"{201 + 2 * place}")]  # fmt: skip
        record, _ = after(record, words)
    assert record is not None
    assert oscillates(record.path) is not None


def test_going_back_gives_no_budget_back() -> None:
    """And neither does going on: only a state that is reached anew starts a count anew."""
    back = told(reached(*APPROVED)._replace(counts=USED, lifetime=USED), licence()).record
    assert back.counts == USED
    on = told(back, licence("success", 60)).record
    assert {name for name, used in on.counts.items() if not used} == {"rebuild"}


def test_the_history_has_the_states_on_the_path() -> None:
    """So that a bot which has not acted since then is seen to be late."""
    back = told(reached(*APPROVED), licence()).record
    found = told(back, licence("success", 60))
    assert [past.happening for past in history_of(found.events)] == [
        "CHECKS_PASSED", "POLICY_STARTED", "POLICY_PASSED", "APPROVAL_GRANTED",
    ]  # fmt: skip


def test_a_persons_merge_wins_while_a_check_runs() -> None:
    """It is merged, whatever runs."""
    back = told(reached(*APPROVED), licence()).record
    merged = told(back, pull("merged", 70, state="merged", actor=PERSON))
    assert merged.record.state == "MERGED"
