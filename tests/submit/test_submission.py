"""What a submit means: bodies that make sense, and what becomes of a key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline import payload_hash
from towline.jobs.ids import ordered_uuid
from towline.submit.rules import (
    Keep,
    Load,
    LoadLimits,
    Standing,
    cached_result,
    decide,
    pressure,
    read_submission,
    shown,
    status_of,
)
from towline_once.errors import Rejected

KEEP = Keep(completed_us=86_400, failed_us=3_600)
NOW = 1_000_000


def standing(state: str | None = "queued", attempts: int = 0, finished: int | None = None) -> Any:
    return Standing("first", "hash", "job_1", state, attempts, finished)


def test_a_submission_is_read_whole() -> None:
    """Kind, params, their hash, key and node are taken from the body."""
    body = {
        "kind": "build.run",
        "params": {"b": 1.0, "a": "ü"},
        "idempotency_key": "k-1",
        "client": {"node_id": "node 7"},
        "extra": True,
    }
    read = read_submission(body)
    assert read.kind == "build.run"
    assert read.params == '{"a":"ü","b":1.0}'
    assert (read.key, read.node_id) == ("k-1", "node 7")
    assert read.payload_hash == payload_hash({"kind": "build.run", "params": {"a": "ü", "b": 1}})


def test_key_and_client_are_no_part_of_the_payload() -> None:
    """Two submitters of one payload have one hash, whatever else they say."""
    one = read_submission({"kind": "k", "params": {}, "idempotency_key": "a"})
    two = read_submission({"kind": "k", "client": {"node_id": "n"}})
    assert one.payload_hash == two.payload_hash
    assert (two.key, two.params) == (None, "{}")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": None}, {"kind": ""}, {"kind": "a" * 101}, {"kind": "a b"}, {"kind": "a:b"},
        {"kind": "ä"}, {"kind": "a\n"}, {"kind": 7}, {"params": None}, {"params": []},
        {"params": {"n": 2**53}}, {"idempotency_key": ""}, {"idempotency_key": "k" * 256},
        {"idempotency_key": "a\0b"}, {"idempotency_key": "a\nb"}, {"idempotency_key": 7},
        {"client": "node"}, {"client": {"node_id": 7}}, {"client": {"node_id": "n" * 256}},
    ],
)  # fmt: skip
def test_bodies_that_make_no_sense_are_rejected(change: dict[str, Any]) -> None:
    """Each member has its form, and a wrong one is named."""
    with pytest.raises(Rejected):
        read_submission({"kind": "k", "params": {}} | change)


@pytest.mark.parametrize("body", [None, [], "text", 7, True])
def test_a_body_is_an_object(body: Any) -> None:
    """Any other JSON value is rejected."""
    with pytest.raises(Rejected, match="object"):
        read_submission(body)


@pytest.mark.parametrize("key", ["k", "k" * 255, "Schlüssel", "a b"])
def test_keys_within_their_limits(key: str) -> None:
    """1 to 255 printable characters are a key."""
    assert read_submission({"kind": "k", "idempotency_key": key}).key == key


@pytest.mark.parametrize(
    ("state", "attempts", "status"),
    [
        ("queued", 0, "accepted"),
        ("queued", 1, "in_progress"),
        ("running", 1, "in_progress"),
        ("done", 1, "completed"),
        ("dead", 3, "failed"),
    ],
)
def test_the_status_is_that_of_the_job(state: str, attempts: int, status: str) -> None:
    """A request is accepted until somebody begins its job."""
    assert status_of(state, attempts) == status


@pytest.mark.parametrize(
    ("there", "decision"),
    [
        (None, "new"),
        (standing("queued"), "in_progress"),
        (standing("running", 1), "in_progress"),
        (standing("queued", 1), "in_progress"),
        (standing("done", 1, NOW - 86_399), "completed"),
        (standing("done", 1, NOW - 86_400), "replace"),
        (standing("dead", 1, NOW - 3_599), "failed"),
        (standing("dead", 1, NOW - 3_600), "replace"),
        (standing(None), "replace"),
    ],
)
def test_the_same_payload(there: Standing | None, decision: str) -> None:
    """A known key is told how its request stands, until that has expired."""
    assert decide(there, "second", "hash", NOW, KEEP) == decision


@pytest.mark.parametrize(
    ("there", "decision"),
    [
        (standing("queued"), "collision"),
        (standing("running", 1), "collision"),
        (standing("done", 1, NOW), "collision"),
        (standing("dead", 1, NOW), "collision"),
        (standing("done", 1, NOW - 86_400), "replace"),
    ],
)
def test_another_payload(there: Standing, decision: str) -> None:
    """A key that stands for one payload is refused to another, until it has expired."""
    assert decide(there, "second", "other hash", NOW, KEEP) == decision


def test_its_own_request_is_no_duplicate() -> None:
    """A request that finds itself was stored, and its answer lost."""
    assert decide(standing(), "first", "hash", NOW, KEEP) == "accepted"


def test_what_runs_never_expires() -> None:
    """However old it is, an unfinished request keeps its key."""
    assert decide(standing("running", 1), "second", "hash", NOW * 10**9, KEEP) == "in_progress"


@pytest.mark.parametrize(
    ("queued", "running", "verdict"),
    [(9, 0, "open"), (10, 0, "full"), (9, 5, "deferred"), (9, 4, "open"), (11, 9, "full")],
)
def test_pressure(queued: int, running: int, verdict: str) -> None:
    """A full queue refuses; too much in flight only defers."""
    assert pressure(Load(queued, running), LoadLimits(10, 5)) == verdict


def test_a_large_result_leaves_a_tombstone() -> None:
    """A duplicate is shown the result, or its size where it was not fetched, or nothing."""
    assert cached_result('"1234"', 6) == '"1234"'
    assert json.loads(cached_result(None, 7) or "") == {"result_omitted": True, "bytes": 7}
    assert cached_result(None, None) is None


def test_only_a_prefix_is_shown() -> None:
    """Eight characters of a key or a hash may be logged."""
    assert shown("0123456789") == "01234567"
    assert shown("01234567") == "0123"


@given(st.integers(0, 2**57), st.binary(min_size=8), st.binary(min_size=8))
def test_ids_sort_by_time(now_us: int, dice: bytes, later_dice: bytes) -> None:
    """An id of a later microsecond is greater, as UUID and as text; both are of version 7."""
    first, second = ordered_uuid(now_us, dice), ordered_uuid(now_us + 1, later_dice)
    assert str(first) < str(second)
    assert first.hex < second.hex
    assert (first.version, first.variant) == (7, "specified in RFC 4122")
