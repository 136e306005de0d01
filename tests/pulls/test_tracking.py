"""Section 13 of the specification, line by line, and the rulings on what it leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pulls.pull_words import (
    BOT,
    CONTEXT,
    HEAD,
    NEXT,
    PERSON,
    REPO,
    SECOND_US,
    START_US,
    after,
    check,
    closed,
    comment,
    entry,
    facts,
    merged,
    new_record,
    policy,
    pull,
    pushed,
    queue,
    review,
    suite,
    told,
)
from towline.events import Actor, Event, PullRequestChanged
from towline.pulls.budgets import STRATEGIES, Strategy, none_used
from towline.pulls.lifecycle import PAST_CHECKS, STATES, TERMINAL, State
from towline.pulls.transitions import KEPT_STATES, decide

LIVE = [state for state in STATES if state not in TERMINAL]
GREEN, RED = check("success"), check("failure", summary="AssertionError")
USED: dict[Strategy, int] = dict.fromkeys(STRATEGIES, 1)


@pytest.mark.parametrize("action", ["opened", "reopened", "ready_for_review"])
def test_an_opening_makes_a_record(action: str) -> None:
    """In state CREATED, with nothing spent and a line of the log."""
    made = told(None, pull(action))
    record, event = made.record, made.events[0]
    assert (record.state, record.path, record.counts) == ("CREATED", ("CREATED",), none_used())
    assert (record.ref.repo, record.ref.number, record.ref.forge) == (REPO, 7, "github")
    assert (record.head_sha, record.vulnerability_id) == (HEAD, "CVE-2024-12345")
    assert (record.author, record.base_ref) == ("dependabot[bot]", "main")
    assert (event.event_type, event.source) == ("PR_OPENED", "github-webhook")
    assert event.key == "delivery:0"
    assert record.expires_us is None


@pytest.mark.parametrize(
    "event",
    [
        pull("synchronize"), pull("edited"), pull("labeled", label="bug", labels=("bug", "tow")),
        pull("opened", author=PERSON, head_ref="x"), pull("opened", state="closed"),
        merged(), closed(), check("pending"), review(), comment("hi"), queue(), policy("failure"),
    ],
)  # fmt: skip
def test_anything_else_about_an_unknown_pull_request_is_ignored(event: Event) -> None:
    """A late event for one that was forgotten, or one that is not towed."""
    assert decide(None, event, CONTEXT, entry()) is None


def test_a_towing_label_brings_it_under_tow() -> None:
    """Whoever wrote it."""
    event = pull("labeled", author=PERSON, head_ref="x", label="tow", labels=("tow",))
    assert told(None, event).record.state == "CREATED"


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize("event", [pull("reopened", 90), merged(), RED, review(), pushed()])
def test_an_ended_life_takes_no_events(state: State, event: Event) -> None:
    """The record awaits its cleanup."""
    assert decide(new_record(state), event, CONTEXT, entry()) is None


LINES: list[tuple[State, Event, str, State]] = [
    ("CREATED", suite("queued"), "CHECKS_STARTED", "CHECKS_RUNNING"),
    ("CREATED", check("pending", status="queued"), "CHECKS_STARTED", "CHECKS_RUNNING"),
    ("CHECKS_RUNNING", GREEN, "CHECKS_PASSED", "CHECKS_PASSED"),
    ("CHECKS_RUNNING", RED, "CHECKS_FAILED", "CHECKS_FAILED"),
    ("CHECKS_RUNNING", check("timed_out"), "CHECKS_FAILED", "CHECKS_FAILED"),
    ("CHECKS_FAILED", check("pending", 20), "CHECKS_STARTED", "CHECKS_RUNNING"),
    ("CHECKS_PASSED", policy("pending"), "POLICY_STARTED", "POLICY_EVALUATING"),
    ("POLICY_EVALUATING", policy("success"), "POLICY_PASSED", "POLICY_PASSED"),
    ("POLICY_EVALUATING", policy("failure"), "POLICY_FAILED", "POLICY_FAILED"),
    ("POLICY_FAILED", policy("pending"), "POLICY_STARTED", "POLICY_EVALUATING"),
    ("POLICY_PASSED", review(), "APPROVAL_GRANTED", "APPROVED"),
    ("APPROVED", queue(), "MERGE_ATTEMPTED", "MERGING"),
    ("MERGING", merged(), "MERGE_SUCCEEDED", "MERGED"),
    ("MERGING", pushed(), "BRANCH_UPDATED", "CHECKS_RUNNING"),
    ("MERGING", closed(), "PR_CLOSED", "CLOSED"),
    *((state, check("pending"), "CHECKS_STARTED", "CHECKS_RUNNING") for state in PAST_CHECKS),
    *((state, RED, "CHECKS_FAILED", "CHECKS_FAILED") for state in PAST_CHECKS),
    *((state, closed(), "PR_CLOSED", "CLOSED") for state in LIVE),
    *((state, pushed(by=PERSON), "BRANCH_UPDATED", "CHECKS_RUNNING") for state in LIVE),
    *((state, merged(), "PR_MERGED", "MERGED") for state in LIVE[:7]),
    ("NEEDS_INTERVENTION", merged(), "PR_MERGED", "MERGED"),
]


@pytest.mark.parametrize(("state", "event", "line", "target"), LINES)
def test_a_line_of_the_map(state: State, event: Event, line: str, target: State) -> None:
    """Each event of section 2 moves the state, starts its clock anew and is written down."""
    found = told(new_record(state), event)
    assert (found.events[0].event_type, found.record.state) == (line, target)
    assert found.record.since_us == START_US + 100 * SECOND_US
    assert found.record.path[-1] == target
    assert found.events[0].payload["from"] == state
    assert found.events[0].payload["to"] == target
    ends = found.record.since_us + 24 * 3600 * SECOND_US if target in TERMINAL else None
    assert found.record.expires_us == ends


@pytest.mark.parametrize(
    ("state", "event", "path"),
    [
        ("CREATED", GREEN, ["CHECKS_RUNNING", "CHECKS_PASSED"]),
        ("CREATED", RED, ["CHECKS_RUNNING", "CHECKS_FAILED"]),
        ("CHECKS_PASSED", policy("success"), ["POLICY_EVALUATING", "POLICY_PASSED"]),
        ("CHECKS_PASSED", policy("failure"), ["POLICY_EVALUATING", "POLICY_FAILED"]),
        ("APPROVED", merged(), ["MERGING", "MERGED"]),
    ],
)
def test_states_that_an_event_implies_are_one_line_with_the_path(
    state: State, event: Event, path: list[str]
) -> None:
    """Ruling 2."""
    found = told(new_record(state), event)
    assert [line.payload["path"] for line in found.events] == [path]
    assert list(found.record.path[-2:]) == path


@pytest.mark.parametrize(
    ("state", "event", "new", "happening"),
    [
        ("CREATED", review(), "APPROVED", "APPROVAL_GRANTED"),
        ("CREATED", policy("success"), "POLICY_PASSED", "POLICY_PASSED"),
        ("CHECKS_RUNNING", policy("pending"), "POLICY_EVALUATING", "POLICY_STARTED"),
        ("CHECKS_FAILED", policy("success"), "POLICY_PASSED", "POLICY_PASSED"),
        ("CHECKS_PASSED", queue(), "MERGING", "MERGE_ATTEMPTED"),
        ("CHECKS_RUNNING", pull("reopened", 2), "CREATED", "PR_OPENED"),
        ("NEEDS_INTERVENTION", GREEN, "CHECKS_PASSED", "CHECKS_PASSED"),
        ("NEEDS_INTERVENTION", pushed(by=BOT), "CHECKS_RUNNING", "BRANCH_UPDATED"),
    ],
)
def test_what_the_map_does_not_have_is_an_anomaly(
    state: State, event: Event, new: str, happening: str
) -> None:
    """Written down in the words of the specification; the state and its clock stay."""
    before = new_record(state, counts=USED)
    found = told(before, event)
    text = f"Invalid transition for PR #7: {state} → {new} via {happening}"
    assert [line.payload.get("anomaly") for line in found.events] == [text]
    assert found.events[0].event_type == happening
    assert (found.record.state, found.record.since_us) == (state, before.since_us)
    assert (found.record.counts, found.record.path) == (before.counts, before.path)


@pytest.mark.parametrize(
    ("state", "events"),
    [
        ("CHECKS_RUNNING", [check("pending", 11), check("pending", 12, "lint")]),
        ("CHECKS_FAILED", [RED, check("failure", 12, "lint")]),
        ("APPROVED", [review(), review(at=41)]),
    ],
)
def test_a_repeat_refreshes_nothing_but_the_log(state: State, events: list[Event]) -> None:
    """A line for each; the clock, the counts and the path stay."""
    before = new_record(state, counts=USED)
    record, lines = after(before, events)
    assert record is not None
    assert len(lines) == len(events)
    assert (record.since_us, record.counts) == (before.since_us, before.counts)
    assert record.path == before.path


def test_a_second_failure_may_change_what_kind_it_is() -> None:
    """Transient only as long as each failed check is."""
    record, _ = after(new_record("CHECKS_RUNNING"), [check("timed_out", 10)])
    assert record is not None
    assert record.substatus == "TRANSIENT"
    record, _ = after(record, [check("failure", 12, "unit", summary="AssertionError")])
    assert record is not None
    assert (record.state, record.substatus) == ("CHECKS_FAILED", "PERSISTENT")


def test_the_policy_that_failed_is_the_substatus() -> None:
    """And it is gone with the state."""
    record, _ = after(new_record("CHECKS_PASSED"), [policy("failure", summary="SOD: no")])
    assert record is not None
    assert (record.state, record.substatus) == ("POLICY_FAILED", "SOD_FAILURE")
    record, _ = after(record, [policy("pending", 31)])
    assert record is not None
    assert record.substatus is None


def test_what_came_too_early_is_caught_up_with() -> None:
    """Policy and approval before the checks: anomalies first, then each its own line."""
    early = [policy("success", 30), review(at=40)]
    record, lines = after(new_record("CHECKS_RUNNING"), early)
    assert record is not None
    assert (record.state, lines) == ("CHECKS_RUNNING", ["POLICY_PASSED", "APPROVAL_GRANTED"])
    found = told(record, GREEN)
    assert found.record.state == "APPROVED"
    assert [(line.event_type, line.source, line.key) for line in found.events] == [
        ("CHECKS_PASSED", "github-webhook", "delivery:0"),
        ("POLICY_PASSED", "policy-bot", "delivery:0/1"),
        ("APPROVAL_GRANTED", "approver-bot", "delivery:0/2"),
    ]


def test_an_early_refusal_waits_for_another_word() -> None:
    """The policy bot refused while the build ran: it is to look again, not to be believed."""
    record, _ = after(new_record("CHECKS_RUNNING"), [policy("failure", 8, "build"), GREEN])
    assert record is not None
    assert record.state == "CHECKS_PASSED"


@pytest.mark.parametrize(
    ("state", "events", "lines", "end"),
    [
        (
            "CHECKS_RUNNING",
            [RED, check("success", 20, run_id="101")],
            ["CHECKS_FAILED", "CHECKS_STARTED", "CHECKS_PASSED"],
            "CHECKS_PASSED",
        ),
        (
            "CHECKS_PASSED",
            [policy("failure", 30), policy("success", 31)],
            ["POLICY_FAILED", "POLICY_STARTED", "POLICY_PASSED"],
            "POLICY_PASSED",
        ),
    ],
)
def test_what_failed_and_passes_now_was_begun_again(
    state: State, events: list[Event], lines: list[str], end: State
) -> None:
    """Though nobody told of the new beginning: it is a line of its own."""
    record, written = after(new_record(state), events)
    assert record is not None
    assert (written, record.state) == (lines, end)


def test_another_check_that_starts_is_no_rebuild() -> None:
    """While one has failed, the failure stands."""
    record, lines = after(new_record("CHECKS_RUNNING"), [RED, check("pending", 12, "lint")])
    assert record is not None
    assert (record.state, lines) == ("CHECKS_FAILED", ["CHECKS_FAILED"])


def test_a_failed_merge_is_noted() -> None:
    """The state stays until something follows."""
    record, lines = after(
        new_record("APPROVED"), [queue(at=45), queue("destroyed", 46, "invalidated")]
    )
    assert record is not None
    assert (record.state, lines) == ("MERGING", ["MERGE_ATTEMPTED", "MERGE_FAILED"])


RESETS: list[tuple[State, Event, set[Strategy]]] = [
    ("CHECKS_RUNNING", GREEN, {"rebuild"}),
    ("CHECKS_RUNNING", RED, set()),
    ("CHECKS_FAILED", check("pending", 20), {"branch_update"}),
    ("APPROVED", check("pending", 20), set()),
    ("APPROVED", RED, set()),
    ("APPROVED", pushed(by=BOT), {"branch_update"}),
    ("POLICY_EVALUATING", policy("success"), {"retrigger_policy_bot", "retrigger_sod_check"}),
    ("POLICY_EVALUATING", policy("failure"), {"retrigger_policy_bot", "retrigger_sod_check"}),
    ("CHECKS_PASSED", policy("pending"), set()),
    ("POLICY_PASSED", review(), {"retrigger_approver_bot"}),
    ("APPROVED", queue(), {"retrigger_automerge_bot"}),
    ("APPROVED", merged(), {"retrigger_automerge_bot"}),
    ("MERGING", merged(), {"retrigger_automerge_bot"}),
]


@pytest.mark.parametrize(("state", "event", "reset"), RESETS)
def test_counts_start_anew_by_the_mapping(state: State, event: Event, reset: set[Strategy]) -> None:
    """Section 14: each when it is seen to get past what the strategy is for; no other does."""
    found = told(new_record(state, counts=USED, lifetime=USED), event)
    assert {name for name, used in found.record.counts.items() if used == 0} == reset
    assert found.record.lifetime == USED


@pytest.mark.parametrize(
    ("by", "kept"),
    [
        (PERSON, {"close_and_reopen"}),
        (Actor("towline[bot]", "user"), set(STRATEGIES) - {"branch_update"}),
        (BOT, set(STRATEGIES) - {"branch_update"}),
    ],
)
def test_a_persons_push_gives_new_budgets(by: Actor, kept: set[Strategy]) -> None:
    """Ruling 5: all but the one that is counted for the vulnerability; the lifetime cap stays."""
    found = told(new_record("CHECKS_FAILED", counts=USED, lifetime=USED), pushed(by=by))
    assert {name for name, used in found.record.counts.items() if used} == kept
    assert found.record.lifetime == USED
    assert (found.record.head_sha, found.record.facts.checks) == (NEXT, {})


def test_a_persons_push_calls_back_from_intervention() -> None:
    """Ruling 7, and a bot's does not."""
    assert (
        told(new_record("NEEDS_INTERVENTION"), pushed(by=PERSON)).record.state == "CHECKS_RUNNING"
    )
    bots = told(new_record("NEEDS_INTERVENTION"), pushed(by=BOT)).record
    assert bots.state == "NEEDS_INTERVENTION"


def test_the_path_is_kept_short() -> None:
    """Only as much as tells whether it goes round."""
    long = ("CHECKS_RUNNING", "CHECKS_FAILED") * 40
    found = told(new_record("CHECKS_FAILED", path=long), check("pending", 20))
    assert len(found.record.path) == KEPT_STATES
    assert found.record.path[-1] == "CHECKS_RUNNING"


def remedied(state: State, *words: Event, **fields: Any) -> Any:
    """As a remedy leaves it: the state it hopes for, fifty seconds after the words were heard."""
    known = facts(pull(), *words)
    tried_us = START_US + 50 * SECOND_US
    return new_record(
        state, facts=known, since_us=tried_us, last_remediation_us=tried_us, **fields
    )  # fmt: skip


def test_a_late_failure_from_before_a_rebuild_proves_nothing() -> None:
    """It is of the run that was made again; what the new run says counts."""
    rebuilding = remedied("CHECKS_RUNNING", RED)
    then = START_US / SECOND_US
    late = told(rebuilding, check("failure", then + 40, "lint"))
    assert (late.record.state, late.events) == ("CHECKS_RUNNING", ())
    again = told(late.record, check("failure", then + 70, run_id="101"))
    assert again.record.state == "CHECKS_FAILED"


def test_a_new_run_counts_whatever_its_clock_says() -> None:
    """A forge whose clock is behind by years still tells of another run."""
    for conclusion, state in (("failure", "CHECKS_FAILED"), ("success", "CHECKS_PASSED")):
        found = told(remedied("CHECKS_RUNNING", RED), check(conclusion, 20, run_id="101"))
        assert found.record.state == state


def test_what_a_remedy_hopes_for_resets_nothing_when_it_is_confirmed_only() -> None:
    """A repeat of the hoped-for state is no progress."""
    before = remedied("CHECKS_RUNNING", RED, counts=USED)
    found = told(before, check("pending", 60, run_id="101"))
    assert (found.record.state, found.record.counts) == ("CHECKS_RUNNING", USED)


def test_our_own_echo_is_no_verdict() -> None:
    """A status that we emit again to wake the policy bot is not its answer."""
    record = remedied("POLICY_EVALUATING", GREEN, policy("failure", 30, "SOD"))
    echo = policy("failure", 60, "SOD", actor=Actor("towline[bot]", "bot"))
    assert decide(record, echo, CONTEXT, entry(after=100)) is None
    answer = policy("failure", 60, "SOD", actor=Actor("policy-bot[bot]", "bot"))
    assert told(record, answer).record.state == "POLICY_FAILED"


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        (
            check("failure", summary="first\n second", url="https://ci.example/1"),
            {"check": "build", "conclusion": "failure", "summary": "first second", "head": HEAD,
             "failed": ["build"], "url": "https://ci.example/1", "substatus": "PERSISTENT"},
        ),
        (pushed(by=PERSON), {"actor": "octocat", "before": HEAD, "head": NEXT, "by_person": True}),
        (closed(), {"actor": "octocat", "action": "closed"}),
    ],
)  # fmt: skip
def test_a_line_says_what_a_person_needs(event: Event, payload: dict[str, object]) -> None:
    """Which check, how it ended, its words, who did it, and from where to where."""
    found = told(new_record("CHECKS_RUNNING"), event).events[0].payload
    assert {name: found.get(name) for name in payload} == payload


def test_what_changes_without_an_event_of_its_own_is_kept() -> None:
    """A new title is no line of the log."""
    event = pull("edited", 5, title="Another title", labels=("x",))
    found = told(new_record("APPROVED"), event)
    assert (found.record.title, found.record.facts.labels, found.events) == (
        "Another title", ("x",), (),
    )  # fmt: skip
    assert isinstance(event, PullRequestChanged)
    assert decide(found.record, event, CONTEXT, entry()) is None
