"""The numbers behind the pictures: spans and marks of a life, bars and their scales."""

from __future__ import annotations

import pytest

from towline.dashboard.health import (
    Datum,
    bars,
    buckets_of,
    causes_of,
    distribution,
    healing_of,
    percentile,
)
from towline.dashboard.pull import LEFT, RIGHT, WIDTH, drawn, life_of, ticks_of
from towline.dashboard.queries import Reason
from towline.dashboard.render import duration, web_address
from towline.pulls.model import PullEvent
from towline.pulls.statistics import Step

MINUTE = 60_000_000


def told(kind: str, minute: int, **payload: object) -> PullEvent:
    return PullEvent(kind, "github-webhook", minute * MINUTE, payload, key=f"{kind} {minute}")


LOG = (
    told("PR_OPENED", 0, to="CREATED"),
    told("CHECKS_STARTED", 1, **{"from": "CREATED", "to": "CHECKS_RUNNING"}),
    told("CHECKS_FAILED", 11, **{"from": "CHECKS_RUNNING", "to": "CHECKS_FAILED"}),
    told("CHECKS_PASSED", 12, **{"from": "CHECKS_FAILED", "to": "CHECKS_FAILED", "anomaly": "?"}),
    told("REMEDIATION_REBUILD", 20, by="reconciler"),
    told("REMEDIATION_OUTCOME", 21, outcome="done"),
    told("CHECKS_PASSED", 30, **{"from": "CHECKS_RUNNING", "to": "CHECKS_PASSED"}),
    told("COMMAND_REJECTED", 31, command="/merge", requested_by="octocat"),
    told("STATE_DRIFT_CORRECTED", 50, table="CHECKS_PASSED", actual="MERGED"),
)


def test_a_life_is_told_by_its_log() -> None:
    """Each move is a span; what a remedy moved by itself begins with the remedy."""
    life = life_of(LOG, "MERGED", 50 * MINUTE, 60 * MINUTE)
    assert [(span.state, span.from_us // MINUTE, span.to_us // MINUTE) for span in life.spans] == [
        ("CREATED", 0, 1), ("CHECKS_RUNNING", 1, 11), ("CHECKS_FAILED", 11, 21),
        ("CHECKS_RUNNING", 21, 30), ("CHECKS_PASSED", 30, 50), ("MERGED", 50, 60),
    ]  # fmt: skip
    assert [(mark.kind, mark.at_us // MINUTE) for mark in life.marks] == [
        ("alarm", 12), ("remedy", 20), ("command", 31), ("alarm", 50),
    ]  # fmt: skip
    assert "/merge refused by octocat" in [mark.text for mark in life.marks]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("COMMAND_RECEIVED", "/why ordered by octocat"),
        ("COMMAND_REJECTED", "/why refused by octocat"),
        ("COMMAND_FAILED", "/why given up, ordered by octocat"),
    ],
)
def test_what_became_of_a_command(kind: str, text: str) -> None:
    """A mark says who gave it, and whether it was taken, refused or given up."""
    log = [told(kind, 1, command="/why", requested_by="octocat")]
    assert [mark.text for mark in life_of(log, "CREATED", 0, 9 * MINUTE).marks] == [text]


def test_a_record_has_the_last_word() -> None:
    """Without any log there is one span, as the record has it."""
    life = life_of((), "APPROVED", 5 * MINUTE, 9 * MINUTE)
    assert [(span.state, span.seconds) for span in life.spans] == [("APPROVED", 240.0)]
    assert drawn(life).boxes[0].width == WIDTH - LEFT - RIGHT


def test_the_picture_stays_in_its_frame() -> None:
    """Boxes follow one another within the axis, and ticks are round and few."""
    drawing = drawn(life_of(LOG, "MERGED", 50 * MINUTE, 60 * MINUTE))
    for box in drawing.boxes:
        assert LEFT <= box.x <= box.x + box.width <= WIDTH - RIGHT + 1.5
    assert all(tick.at_us % (10 * MINUTE) == 0 for tick in drawing.ticks)
    assert 3 <= len(drawing.ticks) <= 10


@pytest.mark.parametrize("seconds", [0, 1, 59, 3_600, 86_400, 86_400 * 400])
def test_any_time_has_ticks(seconds: int) -> None:
    """From a moment to a year."""
    assert len(ticks_of(7, 7 + seconds * 1_000_000)) <= 19


def test_bars_reach_to_a_round_number() -> None:
    """The scale ends at or above the largest bar; what is nothing has no height."""
    chart = bars("t", "u", "a", [Datum("x", {"a": 3, "b": 4}), Datum("y", {"a": 0, "b": 0})])
    assert [line.text for line in chart.lines] == ["0", "2", "4", "6", "8"]
    assert [piece.height for piece in chart.bars[1].pieces] == [0, 0]
    assert chart.bars[0].about == "x: 3 a, 4 b"
    assert bars("t", "u", "a", []).empty


def test_distributions_and_percentiles() -> None:
    """Everything is in exactly one step."""
    found = distribution(buckets_of([1, 299, 300, 86_399, 10**9], [], "lead"))
    assert sum(sum(datum.values.values()) for datum in found) == 5
    assert found[0].values == {"pull requests": 2}
    assert (percentile([], 0.5), percentile([3, 1, 2], 0.5), percentile([1, 2], 0.9)) == (
        None,
        2,
        2,
    )


def test_healing() -> None:
    """From the first remedy to what goes well; a command or an escalation is a person."""
    steps = [
        Step("o/a", 1, "REMEDIATION_REBUILD", "reconciler", 0),
        Step("o/a", 1, "REMEDIATION_REBUILD", "reconciler", 5 * MINUTE),
        Step("o/a", 1, "CHECKS_PASSED", "github-webhook", 9 * MINUTE),
        Step("o/a", 2, "COMMAND_RECEIVED", "admin-api", 0),
        Step("o/a", 2, "REMEDIATION_REBUILD", "command-queue", 0),
    ]
    healing = healing_of(steps, stuck=2)
    assert (healing.buckets, healing.alone, healing.helped) == ({1: 1}, 1, 1)
    assert healing.rate == 0.25
    assert healing_of([], 0).rate is None


def test_causes_are_counted_by_rule() -> None:
    """The commonest first, with a reason that was given."""
    reasons = [Reason("CHECKS_FAILED", {"rule": "a", "reason": "why"})] * 2
    assert [cause[:2] for cause in causes_of([Reason("POLICY_FAILED", None), *reasons])] == [
        ("a", 2), ("not diagnosed yet", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (61, "1 min 1 s"),
        (700, "11 min"),
        (3_600, "1 h"),
        (90_061, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """In two units at most."""
    assert duration(seconds) == text


def test_only_web_addresses_are_links() -> None:
    """Whatever a forge or a person wrote."""
    assert web_address("https://forge.example/x") == "https://forge.example/x"
    for wrong in ("javascript:alert(1)", "data:text/html,x", "//host", None, 7):
        assert web_address(wrong) == ""
