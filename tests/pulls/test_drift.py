"""What the forge shows corrects the record, but not what it cannot show or has not done yet."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.pulls.pull_words import (
    CONTEXT,
    HEAD,
    NEXT,
    PERSON,
    SECOND_US,
    START_US,
    check,
    closed,
    facts,
    hoped,
    merged,
    new_record,
    policy,
    pull,
    pushed,
    queue,
    review,
    snapshot,
    suite,
)
from towline.events import CheckChanged, Event
from towline.pulls.budgets import STRATEGIES, Strategy
from towline.pulls.drift import actual_state, correct
from towline.pulls.lifecycle import STATES, TERMINAL, State
from towline.pulls.model import PullRecord, Tracked
from towline.pulls.signals import Signal, Signals
from towline.pulls.staleness import THRESHOLD_SECONDS

LIVE = [state for state in STATES if state not in TERMINAL]
GREEN, RED = check("success"), check("failure")
PASSED, REFUSED = policy("success"), policy("failure")
USED: dict[Strategy, int] = dict.fromkeys(STRATEGIES, 1)
LATER_US = START_US + 7200 * SECOND_US


def looked(record: PullRecord, *words: Event, at_us: int = LATER_US) -> Tracked | None:
    return correct(record, snapshot(*words), CONTEXT, at_us)


def shown(state: State, *words: Event) -> State:
    """The state after a look that shows these."""
    found = looked(new_record(state), *words)
    return found.record.state if found is not None else state


def among(actual: State, *states: State) -> dict[State, State]:
    return dict.fromkeys(states, actual)


def unmoved(*states: State) -> dict[State, State]:
    return {state: state for state in states}


SHOWN: list[tuple[list[Event], dict[State, State]]] = [
    ([], unmoved(*LIVE)),
    ([review()], {"POLICY_PASSED": "APPROVED", "CREATED": "CREATED"}),
    ([suite("queued")], among("CHECKS_RUNNING", "CREATED", "CHECKS_FAILED", "APPROVED")),
    ([RED], among("CHECKS_FAILED", *LIVE[:9])),
    ([GREEN], among("CHECKS_PASSED", "CREATED", "CHECKS_RUNNING", "CHECKS_FAILED")),
    ([GREEN], unmoved("CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_FAILED", "POLICY_PASSED")),
    ([GREEN], unmoved("MERGING")),
    ([GREEN, policy("pending")], among("POLICY_EVALUATING", *LIVE[:8])),
    ([GREEN, REFUSED], among("POLICY_FAILED", *LIVE[:9])),
    ([GREEN, policy("failure", 8)], among("CHECKS_PASSED", "CHECKS_RUNNING", "CHECKS_PASSED")),
    ([GREEN, policy("failure", 8)], unmoved("POLICY_FAILED")),
    ([GREEN, PASSED], among("POLICY_PASSED", *LIVE[:8])),
    ([GREEN, PASSED], unmoved("MERGING")),
    ([GREEN, review()], {"CHECKS_PASSED": "CHECKS_PASSED", "POLICY_PASSED": "APPROVED"}),
    ([GREEN, PASSED, review()], among("APPROVED", *LIVE[:8])),
    ([GREEN, PASSED, review()], unmoved("MERGING", "NEEDS_INTERVENTION")),
    ([merged()], among("MERGED", *LIVE)),
    ([closed()], among("CLOSED", *LIVE)),
    ([RED], unmoved("NEEDS_INTERVENTION")),
    ([check("pending")], among("CHECKS_RUNNING", *LIVE[:9])),
    (
        [GREEN, PASSED, review(), check("pending", 50, "licence")],
        among("CHECKS_RUNNING", *LIVE[2:9]),
    ),
    ([GREEN, suite("queued", suite_id="9")], unmoved("CHECKS_PASSED", "POLICY_PASSED")),
]
CASES = [(state, words, actual) for words, table in SHOWN for state, actual in table.items()]


@pytest.mark.parametrize(("state", "words", "actual"), CASES)
def test_the_state_that_the_forge_shows(state: State, words: list[Event], actual: State) -> None:
    """Forwards, backwards and over several steps; nothing to see is no reason to change."""
    assert shown(state, *words) == actual


def test_a_correction_is_written_down() -> None:
    """In the words of the specification, by the reconciler; the clock starts anew."""
    found = looked(new_record("CHECKS_RUNNING"), check("timed_out", summary="timeout"))
    assert found is not None
    event = found.events[0]
    assert (event.event_type, event.source) == ("STATE_DRIFT_CORRECTED", "reconciler")
    assert event.payload["text"] == (
        "State drift detected for PR #7: table=CHECKS_RUNNING, actual=CHECKS_FAILED"
    )
    assert (event.payload["table"], event.payload["actual"]) == ("CHECKS_RUNNING", "CHECKS_FAILED")
    assert (found.record.since_us, found.record.substatus) == (LATER_US, "TRANSIENT")
    assert found.record.path[-1] == "CHECKS_FAILED"


@pytest.mark.parametrize("word", [merged(), closed()])
def test_an_end_that_was_missed_is_kept_for_a_day(word: Event) -> None:
    """As one that a webhook told of."""
    found = looked(new_record("APPROVED"), word)
    assert found is not None
    assert found.record.expires_us == LATER_US + 24 * 3600 * SECOND_US


@pytest.mark.parametrize(
    ("state", "words", "reset"),
    [
        ("CHECKS_FAILED", [GREEN], {"rebuild"}),
        (
            "CHECKS_FAILED",
            [GREEN, PASSED],
            {"rebuild", "retrigger_policy_bot", "retrigger_sod_check"},
        ),
        ("POLICY_PASSED", [GREEN, PASSED, review()], {"retrigger_approver_bot"}),
        ("POLICY_PASSED", [merged()], {"retrigger_approver_bot", "retrigger_automerge_bot"}),
        ("CHECKS_PASSED", [RED], set()),
        ("APPROVED", [check("pending")], set()),
    ],
)
def test_what_was_seen_resets_counts(
    state: State, words: list[Event], reset: set[Strategy]
) -> None:
    """Also of what it must have passed through on its way."""
    found = looked(new_record(state, counts=USED), *words)
    assert found is not None
    assert {name for name, used in found.record.counts.items() if not used} == reset


def test_where_nothing_differs_nothing_is_written() -> None:
    """A second look at the same; and what it adds to the facts is kept without a line."""
    first = looked(new_record("CHECKS_RUNNING"), RED)
    assert first is not None
    assert looked(first.record, RED, at_us=LATER_US + SECOND_US) is None
    more = looked(first.record, RED, review())
    assert more is not None
    assert (more.events, more.record.facts.approved_by) == ((), ("approver[bot]",))
    assert more.record.since_us == first.record.since_us


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_life_is_left_alone(state: State) -> None:
    """Whatever is shown."""
    assert looked(new_record(state), GREEN) is None


def test_new_commits_that_nobody_told_of() -> None:
    """The facts are those of the new head; without a check yet, its checks are to come."""
    found = looked(new_record("APPROVED"), pushed())
    assert found is not None
    assert (found.record.state, found.record.head_sha) == ("CHECKS_RUNNING", NEXT)
    assert found.events[0].payload["before"] == HEAD
    same = looked(new_record("CHECKS_RUNNING"), pushed())
    assert same is not None
    assert [event.event_type for event in same.events] == ["BRANCH_UPDATED"]
    assert same.record.since_us == LATER_US


def test_a_head_that_moved_during_an_intervention_is_not_judged() -> None:
    """A look does not show who pushed: the webhook will, and then it counts."""
    assert looked(new_record("NEEDS_INTERVENTION"), pushed(by=PERSON)) is None


SOON_US = START_US + 120 * SECOND_US
STALE_US = START_US + 7200 * SECOND_US


BEFORE_IT = START_US / 1e6 + 30
AFTER_IT = START_US / 1e6 + 90


def build(conclusion: str, at: float, number: int) -> CheckChanged:
    """A commit status of a build; each has an id of its own."""
    url = f"https://jenkins.example/job/app/{number}/"
    return check(conclusion, at, check="status", run_id=conclusion, suite_id=None, url=url)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        (check("failure", BEFORE_IT), "CHECKS_RUNNING"),
        (check("failure", AFTER_IT), "CHECKS_FAILED"),
        (check("failure", BEFORE_IT, run_id="101"), "CHECKS_FAILED"),
        (check("failure", BEFORE_IT, attempt=2), "CHECKS_FAILED"),
        (build("failure", BEFORE_IT, 3), "CHECKS_RUNNING"),
        (build("failure", BEFORE_IT, 4), "CHECKS_FAILED"),
    ],
    ids=[
        "the run that was known", "after the remedy", "another run", "another attempt",
        "the build that was known", "another build",
    ],
)  # fmt: skip
def test_a_run_that_failed_unheard_before_a_remedy_proves_nothing(
    word: CheckChanged, state: State
) -> None:
    """The look is the first to tell; of another run that is news, whatever its clock says."""
    began = START_US / 1e6
    known = build("pending", began, 3) if word.check == "status" else check("pending", began)
    record = hoped("CHECKS_RUNNING", known)
    found = looked(record, word, at_us=SOON_US)
    assert found is not None
    assert found.record.state == state


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("CHECKS_RUNNING", [RED]),
        ("CHECKS_RUNNING", [RED, check("success", name="lint")]),
        ("CHECKS_RUNNING", [GREEN, PASSED, review()]),
        ("POLICY_EVALUATING", [GREEN, REFUSED]),
        ("POLICY_EVALUATING", [GREEN]),
        ("MERGING", [GREEN, PASSED, review()]),
    ],
)
def test_what_a_remedy_hopes_for_is_not_taken_back_at_once(
    state: State, words: list[Event]
) -> None:
    """The old verdict is still shown between a rerun and its first check."""
    found = looked(hoped(state, *words), *words, at_us=SOON_US)
    assert found is None or (found.record.state, found.events) == (state, ())


def test_a_failure_that_is_first_seen_after_a_remedy_may_be_older() -> None:
    """Nobody had told of it: what counts is when it ran, and not when it was seen."""
    found = looked(hoped("CHECKS_RUNNING"), RED, at_us=SOON_US)
    assert found is not None
    assert (found.record.state, found.events) == ("CHECKS_RUNNING", ())
    newer = check("failure", START_US / SECOND_US + 90)
    after = looked(hoped("CHECKS_RUNNING"), newer, at_us=SOON_US)
    assert after is not None
    assert after.record.state == "CHECKS_FAILED"


def test_a_look_that_was_overtaken_changes_nothing() -> None:
    """Something was heard after it began; but what has ended has ended."""
    record = new_record("APPROVED", updated_us=SOON_US)

    def seen(*words: Event, began_us: int) -> Tracked | None:
        return correct(record, snapshot(*words), CONTEXT, LATER_US, began_us)

    assert seen(RED, began_us=SOON_US - 1) is None
    assert seen(RED, began_us=SOON_US) is not None
    assert seen(merged(), began_us=SOON_US - 1) is not None


def test_of_two_looks_the_older_one_changes_nothing() -> None:
    """What the newer one has shown is noted as heard, also where the state holds."""
    found = looked(new_record("CHECKS_RUNNING"), check("pending", name="lint"), at_us=SOON_US)
    assert found is not None
    assert (found.record.state, found.record.updated_us) == ("CHECKS_RUNNING", SOON_US)


@pytest.mark.parametrize(
    ("state", "known", "new", "actual"),
    [
        ("CHECKS_RUNNING", [RED], check("failure", 90, run_id="101"), "CHECKS_FAILED"),
        (
            "CHECKS_RUNNING",
            [check("failure", attempt=1)],
            check("failure", attempt=2),
            "CHECKS_FAILED",
        ),
        ("CHECKS_RUNNING", [RED], check("success", 90, run_id="101"), "CHECKS_PASSED"),
        ("POLICY_EVALUATING", [GREEN, REFUSED], policy("failure", 90, "again"), "POLICY_FAILED"),
        ("POLICY_EVALUATING", [GREEN, REFUSED], policy("success", 90), "POLICY_PASSED"),
    ],
)
def test_a_new_word_is_believed(
    state: State, known: list[Event], new: Event, actual: State
) -> None:
    """Another run, another attempt, another verdict: the remedy has had its effect."""
    kept = known[:-1]
    found = looked(hoped(state, *known), *kept, new, at_us=SOON_US)
    assert found is not None
    assert found.record.state == actual


@pytest.mark.parametrize(
    ("state", "words", "actual"),
    [
        ("CHECKS_RUNNING", [RED], "CHECKS_FAILED"),
        ("POLICY_EVALUATING", [GREEN, REFUSED], "POLICY_FAILED"),
        ("POLICY_EVALUATING", [GREEN], "POLICY_EVALUATING"),
    ],
)
def test_hope_ends_when_the_state_is_stale(state: State, words: list[Event], actual: State) -> None:
    """Then what is shown is believed; a policy bot that left no sign stays in doubt."""
    assert THRESHOLD_SECONDS[state] < 7000
    found = looked(hoped(state, *words), *words, at_us=STALE_US)
    assert (found.record.state if found else state) == actual


def test_an_approval_in_words_may_be_out_of_sight() -> None:
    """A look shows the newest comments only: that one is missing proves nothing."""
    by_comment = Signals(
        outcomes={"approved": (Signal(comment_by="approver[bot]", pattern=re.compile("ok")),)}
    )
    known = facts(pull(), GREEN, PASSED, signals=by_comment)
    record = new_record("APPROVED", facts=known)
    assert actual_state(known, by_comment, record) == "APPROVED"
    assert actual_state(known, Signals(), record) == "POLICY_PASSED"


def test_a_merge_queue_is_remembered() -> None:
    """A look does not show it: what its webhook told stands."""
    record = new_record("APPROVED", facts=facts(pull(), GREEN, PASSED, review(), queue()))
    found = looked(record, GREEN, PASSED, review())
    assert found is not None
    assert found.record.state == "MERGING"


def test_what_our_own_judgement_found_is_kept() -> None:
    """Where there is no policy bot the forge shows nothing of it, and the substatus is ours."""
    record = new_record("POLICY_FAILED", substatus="SOD_FAILURE")
    found = looked(record, GREEN)
    assert found is not None
    assert (found.record.state, found.record.substatus) == ("POLICY_FAILED", "SOD_FAILURE")


def test_a_new_head_that_is_as_far_has_gone_all_the_way_again() -> None:
    """So what was counted for the old one starts anew, but for a reopening."""
    there = new_record("POLICY_PASSED", counts=USED)
    words = [replace(one, head_sha=NEXT) for one in (GREEN, PASSED)]
    found = looked(there, pull("edited", head_sha=NEXT), *words)
    assert found is not None
    assert found.record.state == "POLICY_PASSED"
    assert {name for name, used in found.record.counts.items() if used} == {
        "close_and_reopen", "retrigger_approver_bot", "retrigger_automerge_bot",
    }  # fmt: skip


def test_a_look_may_find_the_vulnerability() -> None:
    """By its body, which no webhook had told of; what is known stays."""
    nameless = new_record(vulnerability_id=None)
    shown_body = replace(snapshot(pull("edited", head_ref="fix")), body="Fixes CVE-2024-55555.")
    found = correct(nameless, shown_body, CONTEXT, LATER_US)
    assert found is not None
    assert found.record.vulnerability_id == "CVE-2024-55555"
    known = correct(new_record(vulnerability_id="CVE-2020-1"), shown_body, CONTEXT, LATER_US)
    assert known is None or known.record.vulnerability_id == "CVE-2020-1"


def test_the_same_drift_again_is_another_line() -> None:
    """Its key has the version that was corrected, so that a repeat is told from a duplicate."""
    keys = set()
    for version in (1, 2):
        found = looked(new_record("CHECKS_RUNNING", version=version), RED)
        assert found is not None
        keys.add(found.events[0].key)
    assert len(keys) == 2
