"""Thresholds from observed waits, with those that were cut short taken for what they are."""

from __future__ import annotations

import tomllib

import pytest

from tests.core.backtest_logs import (
    MINUTE,
    at,
    escalated,
    history,
    opened,
    outcome,
    remedy,
)
from towline.core.staleness import THRESHOLD_SECONDS
from towline.core.tune import (
    Proposal,
    Tally,
    Wait,
    Waits,
    as_toml,
    fewest_for,
    proposals,
    rounded_up,
    waits_of,
)


def counted(
    moved: list[int], helped: list[int] | None = None, cut: list[int] | None = None
) -> Waits:
    waits = Waits()
    waits.moved.update(moved)
    waits.helped.update(helped or [])
    waits.cut.update(cut or [])
    return waits


def test_cut_waits_count_as_lasting_longer() -> None:
    """The textbook's leukaemia remissions: 6-mercaptopurine, median 23 weeks."""
    moved = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    cut = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    assert counted(moved, cut=cut).percentile(0.5) == 23
    assert counted(moved).percentile(0.5) == 10
    assert counted(moved, cut=cut).percentile(0.95) is None


def test_those_that_never_end_do_not_hide_the_rest() -> None:
    """Where all healthy waits are short and the stuck ones long, the share is of the healthy."""
    healthy = list(range(1, 101))
    assert counted(healthy, helped=[1800] * 30).percentile(0.95) == 95
    assert counted(healthy, helped=[1800] * 30).stuck_share(0.95) == pytest.approx(30 / 130)
    late = [*healthy, *range(1000, 1030)]
    assert counted(late, helped=[1800] * 30).stuck_share(0.95) == 0.0
    assert counted(late, helped=[1800] * 30).percentile(0.95) is None


def test_too_few_propose_nothing() -> None:
    """It says how many there are and how many are needed."""
    tally = Tally(states={"APPROVED": counted([5] * 19)})
    approved = _of(proposals(tally, THRESHOLD_SECONDS, 0.95), "APPROVED")
    assert approved.seconds is None
    assert approved.why == "too few: 19 ended by themselves, 20 are needed"
    assert (fewest_for(0.95), fewest_for(0.99), fewest_for(0.5)) == (20, 100, 10)


def test_a_proposal_says_what_it_would_have_meant() -> None:
    """How many healthy waits it disturbs, and how much earlier stuck ones are found."""
    waits = counted([*range(1, 96), 300, 310, 320, 330, 700], helped=[1800] * 4)
    tally = Tally(states={"APPROVED": waits})
    made = proposals(tally, THRESHOLD_SECONDS, 0.95)
    approved = _of(made, "APPROVED")
    assert (approved.measured, approved.seconds) == (95, 120)
    assert (approved.disturbed_now, approved.disturbed_then) == (1, 5)
    assert (approved.helped, approved.found_earlier) == (4, 480)
    assert tomllib.loads(as_toml(made)) == {"staleness": {"approved": 120}}
    own = tomllib.loads(as_toml(made, "octo-org/app"))
    assert own == {"repo": {"octo-org/app": {"staleness": {"approved": 120}}}}


def test_what_only_calls_people_sooner_is_a_remark() -> None:
    """A shorter time for a state without a remedy is left out; a longer one, or healed, is not."""
    quick, slow = counted([*range(1, 101)]), counted([*range(7001, 7101)])
    made = proposals(Tally(states={"MERGING": quick, "CREATED": slow}), THRESHOLD_SECONDS, 0.95)
    text = as_toml(made)
    assert set(tomllib.loads(text)["staleness"]) == {"created"}
    assert "# left out, as a stale MERGING goes straight to a person: 0 of 100" in text
    assert "# unless reconciler.heal_unlisted is set: merging = 120" in text
    healed = tomllib.loads(as_toml(made, heal_unlisted=True))["staleness"]
    assert set(healed) == {"created", "merging"}


def test_waits_end_as_the_log_tells() -> None:
    """By the world, by us, by a person, or without anybody telling."""
    told = history(
        opened(),
        at(1, "CHECKS_STARTED", check="build", head="a"),
        at(4, "CHECKS_FAILED", check="build", head="a", substatus="TRANSIENT"),
        remedy(35, "REBUILD", "rebuild", "checks_transient"),
        outcome(36, 35, "rebuild"),
        at(40, "CHECKS_PASSED", check="build", head="a"),
        at(75, "STATE_DRIFT_CORRECTED", table="CHECKS_PASSED", actual="POLICY_PASSED"),
        at(80, "BRANCH_UPDATED", by_person=True, head="b"),
        escalated(150, "fallthrough"),
        at(160, "CHECKS_PASSED", anomaly="late"),
    )
    assert waits_of(told, 200 * MINUTE) == [
        Wait("CREATED", 1 * MINUTE, "moved"),
        Wait("CHECKS_RUNNING", 3 * MINUTE, "moved", "build"),
        Wait("CHECKS_RUNNING", 3 * MINUTE, "moved"),
        Wait("CHECKS_FAILED", 31 * MINUTE, "helped"),
        Wait("CHECKS_RUNNING", 5 * MINUTE, "moved"),
        Wait("CHECKS_PASSED", 35 * MINUTE, "lost"),
        Wait("POLICY_PASSED", 5 * MINUTE, "cut"),
        Wait("CHECKS_RUNNING", 70 * MINUTE, "helped"),
    ]


def test_what_still_waits_is_cut_by_the_end() -> None:
    """And so is the check that is still out."""
    told = history(opened(), at(1, "CHECKS_STARTED", check="build", head="a"))
    assert waits_of(told, 11 * MINUTE)[1:] == [
        Wait("CHECKS_RUNNING", 10 * MINUTE, "cut"),
        Wait("CHECKS_RUNNING", 10 * MINUTE, "cut", "build"),
    ]


@pytest.mark.parametrize(
    ("seconds", "rounded"), [(1, 60), (61, 90), (600, 600), (601, 660), (3541, 3600)]
)
def test_thresholds_are_round(seconds: int, rounded: int) -> None:
    """Upwards, so that no more waits are disturbed than asked for."""
    assert rounded_up(seconds) == rounded


def _of(made: list[Proposal], state: str) -> Proposal:
    return next(one for one in made if one.state == state and not one.check)
