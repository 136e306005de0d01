"""A history lived through again: what stays, what moves, and what cannot be known."""

from __future__ import annotations

from functools import partial

from tests.core.backtest_logs import (
    AS_IT_WAS,
    MINUTE,
    REF,
    at,
    escalated,
    history,
    lived,
    opened,
    outcome,
    policy,
    remedy,
    told_of,
)
from towline.core.backtest import Comparison, Experience, difference_of, has_helped, quantile
from towline.core.backtest_outages import Outages
from towline.core.backtest_sweeps import Sweep, Weather, sweeps_of
from towline.core.backtest_terms import recorded

HEALED = history(
    opened(),
    at(1, "CHECKS_STARTED"),
    at(3, "CHECKS_FAILED", substatus="TRANSIENT"),
    remedy(35, "REBUILD", "rebuild", "checks_transient"),
    outcome(36, 35, "rebuild"),
    at(43, "CHECKS_PASSED"),
    at(44, "POLICY_PASSED"),
    at(45, "APPROVAL_GRANTED"),
    at(46, "MERGE_SUCCEEDED"),
)
STUCK = history(opened(), at(1, "CHECKS_STARTED"), escalated(65, "fallthrough"))
HEALTHY = history(
    opened(),
    at(1, "CHECKS_STARTED"),
    at(3, "CHECKS_PASSED"),
    at(24, "POLICY_PASSED"),
    at(25, "APPROVAL_GRANTED"),
    at(26, "MERGE_SUCCEEDED"),
)


def test_the_same_policy_does_what_was_done() -> None:
    """The replay makes the same decisions at the same times, from state, clock and budgets."""
    for told, state in ((HEALED, "MERGED"), (STUCK, "NEEDS_INTERVENTION"), (HEALTHY, "MERGED")):
        replayed = lived(told, AS_IT_WAS)
        assert [(one.at_us, one.what) for one in replayed.choices] == [
            (one.at_us, one.what) for one in recorded(told)
        ]
        assert (replayed.state, replayed.learned.out_of_turn) == (state, 0)


def test_what_followed_a_remedy_follows_it_at_another_time() -> None:
    """A rebuild twenty minutes earlier brings the merge twenty minutes earlier."""
    sooner = lived(HEALED, policy({"CHECKS_FAILED": 10}))
    assert told_of(sooner) == [(15, "rebuild")]
    assert (sooner.state, sooner.ended_us) == ("MERGED", 26 * MINUTE)
    later = lived(HEALED, policy({"CHECKS_FAILED": 60}))
    assert (told_of(later), later.ended_us) == ([(65, "rebuild")], 76 * MINUTE)


def test_a_wait_that_ended_by_itself_is_only_disturbed() -> None:
    """A remedy there is needless: it costs a try, and the merge comes when it came."""
    hasty = lived(HEALTHY, policy({"CHECKS_PASSED": 10, "POLICY_EVALUATING": 60}))
    assert told_of(hasty) == [(15, "retrigger_policy_bot")]
    assert hasty.choices[0].needless
    assert (hasty.state, hasty.ended_us) == ("MERGED", 26 * MINUTE)


def test_without_its_remedy_a_history_ends_at_a_person() -> None:
    """A budget of none: no rebuild, so nothing that came of it; what people did stays."""
    none = lived(HEALED, policy(rebuild=0))
    assert (told_of(none), none.state) == ([(35, "escalate")], "NEEDS_INTERVENTION")
    assert none.choices[0].reason == "Retry budget exhausted for rebuild (0/0)"
    by_hand = history(
        opened(),
        at(1, "CHECKS_STARTED"),
        at(3, "CHECKS_FAILED", substatus="TRANSIENT"),
        remedy(35, "REBUILD", "rebuild", "checks_transient"),
        at(43, "CHECKS_FAILED", substatus="TRANSIENT"),
        at(50, "PR_CLOSED"),
    )
    closed = lived(by_hand, policy(rebuild=0))
    assert (closed.state, closed.ended_us) == ("CLOSED", 50 * MINUTE)


def test_a_remedy_that_was_never_tried_is_not_known() -> None:
    """Where a larger budget would have gone on, the replay stops and says what it would try."""
    spent = history(
        opened(),
        at(1, "CHECKS_STARTED"),
        at(3, "CHECKS_PASSED"),
        at(4, "POLICY_FAILED", substatus="SOD_FAILURE"),
        remedy(35, "RETRIGGER_SOD", "retrigger_sod_check", "policy_failed_sod"),
        outcome(40, 35, "retrigger_sod_check"),
        at(41, "POLICY_FAILED", substatus="SOD_FAILURE"),
        escalated(75, "policy_failed_sod"),
    )
    assert lived(spent, AS_IT_WAS).state == "NEEDS_INTERVENTION"
    more = lived(spent, policy(retrigger_sod_check=3))
    assert (more.tried, more.tries) == ("retrigger_sod_check", 2)
    assert "never tried" in more.unknown
    comparison = Comparison()
    comparison.add(spent, lived(spent, AS_IT_WAS), more, share=0.5)
    assert comparison.escalated_range == (0, 1)
    assert comparison.expected == 0.75


def test_patience_lets_the_world_answer_first() -> None:
    """What the log saw happen after an escalation happens before a later one, and spares it."""
    slow = history(
        opened(),
        at(1, "CHECKS_STARTED"),
        escalated(65, "fallthrough"),
        at(70, "CHECKS_PASSED", anomaly="not from NEEDS_INTERVENTION"),
        at(72, "POLICY_PASSED", anomaly="not from NEEDS_INTERVENTION"),
        at(74, "PR_MERGED"),
    )
    patient = lived(slow, policy({"CHECKS_RUNNING": 90}))
    assert (patient.choices, patient.state) == ([], "MERGED")


def test_a_missed_event_is_found_when_it_can_be() -> None:
    """A shorter threshold finds it earlier, but not before such a state usually ends."""
    missed = history(
        opened(),
        at(1, "CHECKS_STARTED"),
        at(65, "STATE_DRIFT_CORRECTED", table="CHECKS_RUNNING", actual="CHECKS_FAILED"),
        escalated(100, "checks_persistent"),
    )
    usual = {"CHECKS_RUNNING": 8 * MINUTE}
    soon = lived(missed, policy({"CHECKS_RUNNING": 10}), usual_us=usual)
    assert told_of(soon) == [(50, "escalate")]
    hasty = lived(missed, policy({"CHECKS_RUNNING": 2}), usual_us=usual)
    assert (told_of(hasty), hasty.choices[0].needless) == ([(5, "escalate")], True)


def test_what_held_a_sweep_back_holds_it_back_still() -> None:
    """A rebuild that a breaker put off by half an hour is not made earlier than it was."""
    put_off = history(
        opened(),
        at(1, "CHECKS_STARTED"),
        at(3, "CHECKS_FAILED", substatus="TRANSIENT"),
        remedy(65, "REBUILD", "rebuild", "checks_transient"),
        at(70, "CHECKS_PASSED"),
    )
    same = lived(put_off, AS_IT_WAS)
    assert told_of(same) == [(65, "rebuild")]
    sooner = lived(put_off, policy({"CHECKS_FAILED": 40}))
    assert told_of(sooner) == [(65, "rebuild")]


def outage(*minutes: float, until: float) -> Outages:
    """As other pull requests met it: rebuilds that nobody answered."""
    outages = Outages()
    for minute in minutes:
        tried = remedy(minute, "REBUILD", "rebuild", "checks_transient")
        silence = outcome(until, minute, "rebuild", "unavailable")
        outages.add(history(opened(), at(1, "CHECKS_STARTED"), tried, silence))
    return outages


def test_a_remedy_that_is_moved_into_an_outage_is_in_vain() -> None:
    """Its try is given back and made again; what it came to comes after the outage."""
    outages = outage(12, 22, until=30)
    meets = partial(outages.cover, REF.forge)
    sooner = lived(HEALED, policy({"CHECKS_FAILED": 10}), in_vain=meets)
    assert told_of(sooner) == [(15, "rebuild"), (25, "rebuild"), (35, "rebuild")]
    assert [one.in_vain for one in sooner.choices] == [True, True, False]
    assert [one.attempt for one in sooner.choices] == [1, 1, 1]
    assert (sooner.state, sooner.ended_us) == ("MERGED", 46 * MINUTE)
    before = lived(HEALED, AS_IT_WAS)
    difference = difference_of(HEALED, before, sooner)
    assert difference is not None
    assert difference.what == "rebuild 20 min earlier, in vain: nobody answered then"


def test_a_remedy_that_is_moved_out_of_an_outage_is_not() -> None:
    """The tries that nobody answered are not made; the one that was answered moves instead."""
    silenced = history(
        opened(),
        at(1, "CHECKS_STARTED"),
        at(3, "CHECKS_FAILED", substatus="TRANSIENT"),
        remedy(35, "REBUILD", "rebuild", "checks_transient"),
        outcome(36, 35, "rebuild", "unavailable"),
        remedy(40, "REBUILD", "rebuild", "checks_transient"),
        outcome(41, 40, "rebuild", "unavailable"),
        remedy(45, "REBUILD", "rebuild", "checks_transient"),
        outcome(46, 45, "rebuild"),
        at(53, "CHECKS_PASSED"),
    )
    outages = Outages()
    outages.add(silenced)
    meets = partial(outages.cover, REF.forge)
    same = lived(silenced, AS_IT_WAS, in_vain=meets)
    assert [(one.at_us, one.what, one.attempt, one.in_vain) for one in same.choices] == [
        (one.at_us, one.what, one.attempt, one.in_vain) for one in recorded(silenced)
    ]
    sooner = lived(silenced, policy({"CHECKS_FAILED": 10}), in_vain=meets)
    assert told_of(sooner)[0] == (15, "rebuild")
    assert [one.in_vain for one in sooner.choices if one.what == "rebuild"] == [False]


def test_an_outage_ends_with_the_first_that_is_answered() -> None:
    """It covers the remedy that was tried, from the first silence to the last, and no other."""
    outages = outage(10, 20, until=25)
    outages.add(HEALED)
    outages.add(history(opened(), remedy(120, "REBUILD", "rebuild", "checks_transient")))
    covered = [m for m in range(0, 130, 5) if outages.cover("github", "rebuild", m * MINUTE)]
    assert covered == [10, 15, 20, 25]
    assert not outages.cover("gitlab", "rebuild", 15 * MINUTE)
    assert not outages.cover("github", "branch_update", 15 * MINUTE)
    apart = outage(10, 100, until=10)
    assert not apart.cover("github", "rebuild", 50 * MINUTE)


def test_sweeps_that_left_no_trace_are_filled_in() -> None:
    """Traces close together are one sweep; between far ones come others at the usual distance."""
    second = 1_000_000
    traces = [600 * second, 610 * second, 1500 * second]
    found = sweeps_of(traces, 0, 1900 * second, 300)
    starts = [sweep.first_us // second for sweep in found]
    assert starts == [300, 600, 910, 1210, 1500, 1800]
    assert found[1] == Sweep(600 * second, 610 * second)


def test_a_repository_is_closed_where_nobody_due_was_helped() -> None:
    """One that was helped in the same sweep shows that it was open."""
    weather = Weather()
    weather.tell("octo-org/app", held_us=[5, 10], helped_us=[])
    weather.tell("octo-org/app", held_us=[], helped_us=[10])
    assert weather.closed("octo-org/app", Sweep(5, 5))
    assert not weather.closed("octo-org/app", Sweep(10, 10))
    assert not weather.closed("octo-org/web", Sweep(5, 5))


def test_a_difference_says_what_and_why() -> None:
    """By the first decision that is another one."""
    before = lived(HEALED, AS_IT_WAS)
    sooner = difference_of(HEALED, before, lived(HEALED, policy({"CHECKS_FAILED": 10})))
    assert sooner is not None
    assert (sooner.ref, sooner.what) == (REF, "rebuild 20 min earlier")
    assert (sooner.merged_before_us, sooner.merged_after_us) == (46 * MINUTE, 26 * MINUTE)
    assert difference_of(HEALED, before, lived(HEALED, AS_IT_WAS)) is None
    none = difference_of(HEALED, before, lived(HEALED, policy(rebuild=0)))
    assert none is not None
    assert none.what == "escalate instead of rebuild"


def test_experience_counts_what_remedies_came_to() -> None:
    """A remedy helped if a state was seen that lets its count start anew."""
    assert has_helped("rebuild", HEALED.steps[4:])
    assert not has_helped("retrigger_policy_bot", STUCK.steps)
    experience = Experience()
    for _ in range(5):
        experience.add(HEALED)
    assert experience.share("octo-org/app", "rebuild") == 1.0
    assert experience.share("octo-org/web", "rebuild") == 1.0
    assert experience.share("octo-org/app", "branch_update") is None


def test_a_log_without_its_beginning_is_not_replayed() -> None:
    """There is no telling what its budgets were."""
    assert not history(at(3, "CHECKS_PASSED")).steps


def test_a_quantile_is_a_value_that_was_seen() -> None:
    """Of few values too."""
    counted = Comparison().before.merge_seconds
    assert quantile(counted, 0.5) is None
    counted.update([10, 20, 30])
    assert (quantile(counted, 0.5), quantile(counted, 0.9)) == (20, 30)
