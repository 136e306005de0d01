"""Percentiles of waits per state, and the staleness thresholds that they advise."""

from __future__ import annotations

import tomllib

import pytest

from tests.history.pull_logs import at, escalated, opened, outcome, remedy
from towline.history.tune import Row, Waits, as_toml, observe, rows
from towline.pulls.lifecycle import State
from towline.pulls.staleness import THRESHOLD_SECONDS


def advised(
    state: State,
    seconds: list[float],
    cut_short: int = 0,
    share: float = 0.95,
    *,
    heal_unlisted: bool = False,
) -> Row:
    waits = {state: Waits(seconds, cut_short)}
    made = rows(waits, THRESHOLD_SECONDS, share, heal_unlisted=heal_unlisted)
    assert [row.state for row in made] == list(THRESHOLD_SECONDS)
    return next(row for row in made if row.state == state)


def test_percentiles_are_of_waits_that_were_seen() -> None:
    """The nearest rank: the shortest time within which so many of them ended."""
    row = advised("APPROVED", [float(second) for second in range(1, 101)])
    assert (row.n, row.p50, row.p90, row.p99) == (100, 50, 90, 99)


def test_too_few_change_nothing() -> None:
    """It says how many there are and how many are needed."""
    row = advised("APPROVED", [5.0] * 19)
    assert (row.advice, row.seconds) == ("keep", 600)
    assert row.why == "too few: 19 waits ended by themselves, 20 are needed"
    assert advised("APPROVED", [5.0] * 19, share=0.9).advice == "lower"
    assert "100 are needed" in advised("APPROVED", [5.0] * 99, share=0.99).why


def test_a_higher_percentile_is_more_patient() -> None:
    """Of the same waits."""
    seconds = [float(second) for second in range(1, 501)]
    patient, hasty = (advised("APPROVED", seconds, share=share) for share in (0.99, 0.5))
    assert (patient.measured, patient.seconds) == (495, 510)
    assert (hasty.measured, hasty.seconds) == (250, 270)


def test_a_threshold_follows_the_longest_healthy_waits() -> None:
    """Shorter where they are short, longer where they are long, upwards to a round time."""
    row = advised("APPROVED", [95.0] * 40)
    assert (row.advice, row.seconds, row.threshold) == ("lower", 120, 600)
    row = advised("APPROVED", [700.0] * 40)
    assert (row.advice, row.seconds) == ("raise", 720)
    row = advised("APPROVED", [590.0] * 40)
    assert (row.advice, row.seconds) == ("keep", 600)


def test_waits_that_were_cut_at_the_threshold_raise_it() -> None:
    """Where healthy waits reach it, those that a remedy ended may have been healthy too."""
    row = advised("APPROVED", [590.0] * 40, cut_short=7)
    assert (row.advice, row.seconds) == ("raise", 900)
    assert "7 were cut short" in row.why
    assert advised("APPROVED", [95.0] * 40, cut_short=7).advice == "lower"


def test_nobody_is_called_sooner_for_nothing() -> None:
    """A stale one of some states goes to a person: no shorter time, unless it is healed first."""
    row = advised("MERGING", [10.0] * 40)
    assert (row.advice, row.seconds) == ("keep", 300)
    assert "goes straight to a person" in row.why
    assert advised("MERGING", [10.0] * 40, heal_unlisted=True).seconds == 60
    assert advised("MERGING", [700.0] * 40).advice == "raise"


def test_only_what_should_change_is_in_the_table() -> None:
    """As the settings take it, for all repositories or for one."""
    waits: dict[State, Waits] = {"APPROVED": Waits([95.0] * 40), "MERGING": Waits([10.0] * 40)}
    made = rows(waits, THRESHOLD_SECONDS, 0.95)
    assert tomllib.loads(as_toml(made)) == {"staleness": {"approved": 120}}
    own = tomllib.loads(as_toml(made, "octo-org/app"))
    assert own == {"repo": {"octo-org/app": {"staleness": {"approved": 120}}}}


def test_waits_end_as_the_log_tells() -> None:
    """By the world, and cut short by us, by a person, or by an event that nobody reported."""
    waits: dict[State, Waits] = {}
    log = [
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
    ]
    observe(log, waits)
    assert waits == {
        "CREATED": Waits([60.0]),
        "CHECKS_RUNNING": Waits([180.0, 300.0], cut_short=1),
        "CHECKS_FAILED": Waits([], cut_short=1),
        "CHECKS_PASSED": Waits([], cut_short=1),
        "POLICY_PASSED": Waits([], cut_short=1),
    }


@pytest.mark.parametrize("log", [[], [at(3, "CHECKS_PASSED")]])
def test_a_log_without_its_beginning_says_nothing(log: list[object]) -> None:
    """How long the first state lasted is not known."""
    waits: dict[State, Waits] = {}
    observe(log, waits)  # type: ignore[arg-type]
    assert waits == {}
