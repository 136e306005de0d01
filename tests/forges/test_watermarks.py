"""How far a source has been read: the rules, as tables and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.forges.polling import (
    FARTHEST_BACK_US,
    Mark,
    advanced,
    advanced_to,
    believed,
    first_mark,
    mark_from,
    mark_text,
    next_since,
    pause_seconds,
    read_since,
    went_too_far_back,
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


@pytest.mark.parametrize(
    ("mark", "started", "ours", "newest", "much"),
    [
        (Mark(0, 500), 9000, 5, 0, 9000),  # an older version kept no word of our time
        (Mark(0, 500, ahead_us=400), 560, 160, 0, 560),  # both went on by 60
        (Mark(0, 500, ahead_us=400), 9000, 160, 0, 560),  # its answer leapt ahead
        (Mark(0, 500, ahead_us=400), 9000, 160, 8000, 8000),  # and its things as well
        (Mark(0, 500, ahead_us=400), 300, 160, 0, 300),  # it was put back
        (Mark(0, 500, ahead_us=400), 9000, 20, 0, 500),  # ours was put back
        (Mark(0, 500, ahead_us=400), 560, 9999, 0, 560),  # ours leapt ahead
    ],
)
def test_how_much_of_its_time_is_believed(
    mark: Mark, started: int, ours: int, newest: int, much: int
) -> None:
    """As much as ours has gone on, or as its things show."""
    assert believed(mark, started, ours, newest) == much


@given(
    began=MOMENTS,
    readings=st.lists(st.tuples(st.integers(0, 10**9), st.integers(-(10**9), 10**12)), min_size=1),
    skew=st.integers(-(10**12), 10**12),
)
def test_an_answer_that_is_ahead_moves_nothing_past_the_present(
    began: int, readings: list[tuple[int, int]], skew: int
) -> None:
    """However wrong the answers were, and how often: the watermark is never in the future."""
    true = began
    mark = first_mark(true)._replace(ahead_us=skew)
    for pause, wrong in readings:
        true += pause
        much = believed(mark, true + wrong, true - skew, 0)
        mark = advanced(mark, much)._replace(ahead_us=much - (true - skew))
        assert mark.watermark_us <= true


def test_a_clock_that_was_put_back_far() -> None:
    """A day is followed, and no more."""
    assert not went_too_far_back(Mark(0, FARTHEST_BACK_US + 7), 7)
    assert went_too_far_back(Mark(0, FARTHEST_BACK_US + 8), 7)


@given(mark=st.builds(Mark, MOMENTS, MOMENTS, st.none() | MOMENTS, st.none() | MOMENTS))
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    """There and back."""
    assert mark_from(mark_text(mark)) == mark
