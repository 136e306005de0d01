"""How far a source has been read: the rules, as tables and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.core.watermarks import (
    Mark,
    advanced,
    advanced_to,
    first_mark,
    mark_from,
    mark_text,
    next_since,
    pause_seconds,
    read_since,
)

MOMENTS = st.integers(min_value=0, max_value=10**16)


@pytest.mark.parametrize(
    ("mark", "now", "since"),
    [
        (Mark(100, 500), 600, 450),  # an overlap of 50 before the watermark
        (Mark(100, 100), 600, 100),  # but not before the first start
        (Mark(480, 500), 600, 480),
        (Mark(100, 500), 400, 350),  # the server's clock was put back
        (Mark(480, 500), 400, 350),  # even before the first start
    ],
)
def test_where_a_reading_begins(mark: Mark, now: int, since: int) -> None:
    """An overlap before the watermark, and never in history."""
    assert read_since(mark, now, 50) == since


def test_the_first_reading_finds_nothing() -> None:
    """It begins and ends now."""
    assert read_since(first_mark(700), 700, 50) == 700


@given(began=MOMENTS, later=MOMENTS, overlap=MOMENTS, work=st.integers(0, 10**9))
def test_no_gap_between_two_readings(began: int, later: int, overlap: int, work: int) -> None:
    """The second begins no later than the first did, however long that took."""
    mark = first_mark(began)
    started = began + later
    mark = advanced(mark, started)
    assert read_since(mark, started + work, overlap) <= started


@given(mark=st.builds(Mark, MOMENTS, MOMENTS), started=MOMENTS)
def test_after_a_clock_was_put_back_nothing_new_is_skipped(mark: Mark, started: int) -> None:
    """The next reading begins no later than the clock stood at this one."""
    moved = advanced(mark, started)
    assert moved == Mark(min(mark.began_us, started), started)
    assert read_since(moved, started, 0) <= started


@pytest.mark.parametrize(
    ("newest", "watermark"),
    [(550, 550), (450, 500), (900, 700)],
)
def test_a_reading_that_was_cut_short(newest: int, watermark: int) -> None:
    """The watermark goes as far as it got, neither back nor past its start; what is heard stays."""
    assert advanced_to(Mark(100, 500), newest, 700) == Mark(100, watermark, heard_us=500)


@pytest.mark.parametrize(
    ("since", "newest", "grain", "later"),
    [
        (0, 5_500, 1000, 4_000),  # one grain before the newest, on a whole one
        (4_000, 5_500, 1000, None),  # a page of one moment: only the next page leads on
        (3_999, 5_500, 1000, 4_000),
        (0, 900, 1000, None),
    ],
)
def test_where_to_ask_on(since: int, newest: int, grain: int, later: int | None) -> None:
    """By time if that leads on, else by the next page."""
    assert next_since(since, newest, grain) == later


@given(since=MOMENTS, newest=MOMENTS, grain=st.integers(1, 10**8))
def test_asking_on_skips_nothing(since: int, newest: int, grain: int) -> None:
    """The newest thing itself, and all that has its moment, is asked for again."""
    later = next_since(since, newest, grain)
    assert later is None or since < later <= newest


@pytest.mark.parametrize(
    ("failures", "asked", "seconds"),
    [(0, 30, 0), (1, 0, 60), (2, 0, 120), (3, 0, 240), (9, 0, 3600), (99, 0, 3600), (1, 90, 90)],
)
def test_how_long_a_source_is_left_alone(failures: int, asked: float, seconds: float) -> None:
    """Longer with each failure up to an hour, and at least as long as it asks for."""
    assert pause_seconds(failures, 60, 3600, asked) == seconds


@given(mark=st.builds(Mark, MOMENTS, MOMENTS, st.none() | MOMENTS))
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    """There and back."""
    assert mark_from(mark_text(mark)) == mark
