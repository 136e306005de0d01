"""Which deliveries are missing, how far back the log is read, and how hours are counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.forges import delivery_log
from towline.forges.delivery_log import HOUR_US, Entry, Hook, HourCounts, Limits, Mark
from towline.inbox.sources import SOURCES
from towline_once import keys
from towline_once.errors import Rejected

MINUTE = 60_000_000
NOON = 500_000 * HOUR_US
LIMITS = Limits()
MARK = Mark(began_us=NOON - 48 * HOUR_US, watermark_us=NOON - HOUR_US)


def entry(
    number: int, guid: str, at_us: int, status: int = 502, *, redelivery: bool = False
) -> Entry:
    return Entry(number, guid, at_us, redelivery, status, "push")


def guids(sent: list[delivery_log.Sent]) -> list[str]:
    return [one.guid for one in sent]


def missing(entries: list[Entry], known: set[str], mark: Mark = MARK) -> list[str]:
    sent = delivery_log.grouped(entries)
    return guids(delivery_log.missing(sent, known, mark, NOON, LIMITS))


def test_what_the_inbox_does_not_know_is_missing_oldest_first() -> None:
    """Newest first in the log, oldest first to be taken in, the known ones left out."""
    log = [entry(3, "c", NOON - MINUTE), entry(2, "b", NOON - 2 * MINUTE, 200)]
    log += [entry(1, "a", NOON - 3 * MINUTE)]
    assert missing(log, {"b"}) == ["a", "c"]


def test_attempts_at_one_delivery_are_one() -> None:
    """A GUID that was sent again is one delivery, of the first attempt's time, read by the last."""
    log = [
        entry(9, "a", NOON - MINUTE, 200, redelivery=True),
        entry(5, "a", NOON - 3 * HOUR_US, 502),
    ]
    [one] = delivery_log.grouped(log)
    assert (one.first_us, one.last_us, one.entry_id) == (NOON - 3 * HOUR_US, NOON - MINUTE, 9)
    assert one.whole
    assert one.answered_us > 0
    assert delivery_log.grouped(log[:1])[0].whole is False


def test_an_answered_delivery_is_missing_only_after_the_grace() -> None:
    """What was answered a moment ago may be on its way into the inbox; a failure is not."""
    log = [entry(2, "now", NOON - MINUTE // 4, 202), entry(1, "then", NOON - MINUTE, 202)]
    log += [entry(3, "failed", NOON, 500)]
    assert missing(log, set()) == ["then", "failed"]


def test_what_somebody_else_answered_before_the_first_sweep_is_not_ours() -> None:
    """Before the log was first read, only a delivery that no one answered is taken in."""
    mark = Mark(began_us=NOON - MINUTE, watermark_us=NOON - 72 * HOUR_US)
    log = [entry(2, "theirs", NOON - HOUR_US, 200), entry(1, "lost", NOON - HOUR_US, 0)]
    assert missing(log, set(), mark) == ["lost"]
    counts = delivery_log.hourly(delivery_log.grouped(log), {"lost"}, mark, NOON - 72 * HOUR_US)
    assert [(count.delivered, count.received) for count in counts] == [(1, 1)]


def test_what_was_refused_is_not_tried_again() -> None:
    """A delivery that cannot be taken in is noted for as long as the log shows it."""
    log = [entry(1, "bad", NOON - MINUTE)]
    sent = delivery_log.grouped(log)
    mark = delivery_log.tallied(MARK, [], sent)
    assert missing(log, set(), mark) == []
    later = [entry(2, "x", NOON + 3 * HOUR_US)]
    moved = delivery_log.advanced(mark, delivery_log.grouped(later), [], NOON + 4 * HOUR_US, LIMITS)
    assert (mark.refused, moved.refused) == (("bad",), ())


def test_the_log_is_read_from_a_whole_hour_before_the_watermark_and_at_most_three_days() -> None:
    """The overlap, down to the hour's start; never further back than GitHub's log goes."""
    mark = MARK._replace(watermark_us=NOON + 10 * MINUTE)
    assert delivery_log.read_since(mark, NOON + 20 * MINUTE, LIMITS) == NOON - HOUR_US
    mark = MARK._replace(watermark_us=NOON + 20 * MINUTE)
    assert delivery_log.read_since(mark, NOON + 30 * MINUTE, LIMITS) == NOON
    old = MARK._replace(watermark_us=NOON - 500 * HOUR_US)
    assert delivery_log.read_since(old, NOON + MINUTE, LIMITS) == NOON + MINUTE - 72 * HOUR_US
    first = delivery_log.first_mark(NOON, LIMITS)
    assert delivery_log.read_since(first, NOON, LIMITS) == NOON - 72 * HOUR_US


def test_the_watermark_stops_at_what_is_left() -> None:
    """Up to the newest delivery, not into the grace, not past the unstored, and never back."""
    sent = delivery_log.grouped([entry(i, str(i), NOON - (9 - i) * MINUTE) for i in range(1, 10)])

    def reached(left: list[delivery_log.Sent], mark: Mark = MARK, now_us: int = NOON) -> int:
        return delivery_log.advanced(mark, sent, left, now_us, LIMITS).watermark_us

    assert reached([]) == NOON - LIMITS.grace_us
    assert reached([], now_us=NOON + HOUR_US) == NOON
    assert reached([sent[4], sent[2]]) == sent[2].first_us
    ahead = MARK._replace(watermark_us=NOON + HOUR_US)
    assert reached([sent[0]], ahead) == NOON + HOUR_US
    assert delivery_log.advanced(MARK, [], [], NOON, LIMITS) == MARK


def test_a_forge_clock_from_the_future_moves_no_watermark_past_the_log() -> None:
    """A wrong Date does not make the next sweep skip what comes meanwhile."""
    sent = delivery_log.grouped([entry(1, "a", NOON - MINUTE)])
    moved = delivery_log.advanced(MARK, sent, [], NOON + 24 * HOUR_US, LIMITS)
    assert moved.watermark_us == NOON - MINUTE


def test_hours_are_counted_on_both_sides_of_their_border() -> None:
    """A delivery belongs to the hour of its first attempt, to the microsecond."""
    log = [
        entry(1, "before", NOON - 1),
        entry(2, "after", NOON),
        entry(3, "again", NOON - 1),
        entry(4, "again", NOON + MINUTE, redelivery=True),
        entry(5, "older", NOON + MINUTE, redelivery=True),
    ]
    sent = delivery_log.grouped(log)
    mark = delivery_log.tallied(MARK, [one for one in sent if one.guid in {"before", "older"}])
    counts = delivery_log.hourly(sent, {"before", "after", "older"}, mark, NOON - HOUR_US)
    assert counts == [HourCounts(NOON - HOUR_US, 2, 0, 1), HourCounts(NOON, 1, 1, 0)]


def test_an_hour_seen_in_part_is_not_counted() -> None:
    """Where the log is read from the middle of an hour, that hour keeps the count it has."""
    sent = delivery_log.grouped([entry(1, "a", NOON + 30 * MINUTE), entry(2, "b", NOON + HOUR_US)])
    counts = delivery_log.hourly(sent, {"a", "b"}, MARK, NOON + 20 * MINUTE)
    assert counts == [HourCounts(NOON + HOUR_US, 1, 1, 0)]


def test_a_sweep_that_was_broken_off_is_counted_by_the_next() -> None:
    """Of what was under way, the stored is recovered and the rest is missing still."""
    log = [entry(1, "stored", NOON - MINUTE), entry(2, "not yet", NOON - MINUTE)]
    sent = delivery_log.grouped(log)
    mark = delivery_log.resumed(MARK._replace(underway=("stored", "not yet")), sent, {"stored"})
    assert (mark.underway, mark.recovered) == ((), {NOON - HOUR_US: 1})
    assert missing(log, {"stored"}, mark) == ["not yet"]
    assert delivery_log.resumed(mark, sent, {"stored"}) == mark


def test_a_mark_survives_being_written() -> None:
    """What is read from the store is what was written."""
    mark = Mark(1, 2, ("u",), ("r", "é"), {NOON: 3, 0: 1})
    assert delivery_log.mark_from(delivery_log.mark_text(mark)) == mark


@pytest.mark.parametrize(
    "hook", [delivery_log.repo_hook("acme/app:17"), delivery_log.app_hook("42")]
)
def test_the_source_reads_the_same_key_from_the_headers(hook: Hook) -> None:
    """A delivery from the log has the key that its webhook had, or would have had."""
    headers = hook.headers("guid-1", "push")
    delivery = SOURCES["github"].receive(headers, b"{}", (), 0.0, allow_unsigned=True)
    assert str(delivery.key) == hook.key("guid-1")
    hook_id = "17" if hook.repo else "app-42"
    assert hook.key("guid-1") == str(keys.GitHub("guid-1", hook_id=hook_id))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "acme/app",
        "acme/app:",
        "acme/app:x",
        "acme/app:07",
        "acme/../x:1",
        "acme/..:1",
        "../x:1",
        "a/b/c:1",
    ],
)
def test_a_hook_that_is_written_wrongly_is_refused(text: str) -> None:
    """Nothing but OWNER/NAME:HOOK_ID gets into a URL."""
    with pytest.raises(Rejected, match="OWNER/NAME:HOOK_ID"):
        delivery_log.repo_hook(text)
    with pytest.raises(Rejected, match="App's id"):
        delivery_log.app_hook("Iv1.8a61f9b3a7aba766")


def test_what_was_passed_over_once_stays_so_when_its_answer_is_out_of_sight() -> None:
    """Answered elsewhere before the first sweep, then failed: the next sweep sees the failure."""
    mark = Mark(began_us=NOON - MINUTE, watermark_us=NOON - 3 * HOUR_US)
    answered, failed = entry(1, "a", NOON - 3 * HOUR_US, 200), entry(2, "a", NOON - 2 * MINUTE, 0)
    sent = delivery_log.grouped([answered, failed])
    assert delivery_log.missing(sent, set(), mark, NOON, LIMITS) == []
    after = delivery_log.advanced(mark, sent, [], NOON, LIMITS)
    assert delivery_log.read_since(after, NOON, LIMITS) > answered.delivered_us
    assert delivery_log.missing(delivery_log.grouped([failed]), set(), after, NOON, LIMITS) == []


def test_an_old_answer_is_no_reason_to_wait() -> None:
    """It was answered hours ago and is not there: a failure just now does not put it off."""
    log = [entry(2, "a", NOON, 0, redelivery=True), entry(1, "a", NOON - 2 * HOUR_US, 200)]
    assert missing(log, set()) == ["a"]


_ENTRIES = st.lists(
    st.builds(
        Entry,
        id=st.integers(1, 10**6),
        guid=st.sampled_from("abcdefgh"),
        delivered_us=st.integers(NOON - 3 * HOUR_US, NOON),
        redelivery=st.booleans(),
        status_code=st.sampled_from([0, 200, 202, 404, 502]),
        event=st.just("push"),
    )
)


@given(_ENTRIES, st.sets(st.sampled_from("abcdefgh")), st.sets(st.sampled_from("abcdefgh")))
def test_nothing_unstored_is_ever_behind_the_watermark(
    log: list[Entry], known: set[str], unlucky: set[str]
) -> None:
    """Whatever the log, the inbox and the failures: the next sweep reads all that is missing."""
    first_since = delivery_log.read_since(MARK, NOON, LIMITS)
    sent = delivery_log.grouped(entry for entry in log if entry.delivered_us >= first_since)
    lost = delivery_log.missing(sent, known, MARK, NOON, LIMITS)
    left = [one for one in lost if one.guid in unlucky]
    mark = delivery_log.advanced(MARK, sent, left, NOON, LIMITS)
    since = delivery_log.read_since(mark, NOON, LIMITS)
    stored = known | {one.guid for one in lost if one.guid not in unlucky}
    again = delivery_log.grouped(entry for entry in log if entry.delivered_us >= since)
    assert guids(delivery_log.missing(again, stored, mark, NOON, LIMITS)) == guids(left)
    for count in delivery_log.hourly(sent, stored, mark, since):
        assert 0 <= count.received + count.recovered <= count.delivered
