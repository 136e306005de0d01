"""What remote workers say, and the seal of their results."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from towline import payload_hash
from towline.submit.rules import (
    BadDigest,
    Claim,
    Failure,
    Renewal,
    read_claim,
    read_completion,
    read_failure,
    read_renewal,
    sealed,
)
from towline_once.errors import Rejected

HOUR = 3_600_000_000
RESULT = {"b": 1.0, "a": "ü"}
FORM = '{"a":"ü","b":1}'.encode()
SHA = hashlib.sha256(FORM).hexdigest()
KEY = b"shared"
MAC = hmac.new(KEY, FORM, hashlib.sha256).hexdigest()


def test_a_claim() -> None:
    """Kinds keep their order and are named once; a lease has a default."""
    body = {"kinds": ["b", "a", "b"], "worker": "w 1"}
    assert read_claim(body, HOUR) == Claim(("b", "a"), "w 1", 60_000_000)
    assert read_claim(body | {"lease_seconds": 1.5}, HOUR).lease_us == 1_500_000


@pytest.mark.parametrize("seconds", [3601, 1e308, 10**400])
def test_a_lease_is_never_longer_than_allowed(seconds: float) -> None:
    """Whoever asks for more gets the longest lease there is."""
    body = {"kinds": ["a"], "worker": "w", "token": 1, "lease_seconds": seconds}
    assert read_claim(body, HOUR).lease_us == HOUR
    assert read_renewal(body, HOUR) == Renewal(1, HOUR)


@pytest.mark.parametrize(
    "change",
    [
        {"kinds": []}, {"kinds": "a"}, {"kinds": ["a b"]}, {"kinds": [None]}, {"kinds": None},
        {"kinds": ["a"] * 101}, {"worker": None}, {"worker": ""}, {"worker": "w" * 201},
        {"worker": "a\0"}, {"worker": 7}, {"lease_seconds": 0}, {"lease_seconds": -5},
        {"lease_seconds": 0.5}, {"lease_seconds": True}, {"lease_seconds": "60"},
    ],
)  # fmt: skip
def test_claims_that_make_no_sense(change: dict[str, Any]) -> None:
    """A claim without kinds, name or a lease above zero is rejected."""
    with pytest.raises(Rejected):
        read_claim({"kinds": ["a"], "worker": "w"} | change, HOUR)


@pytest.mark.parametrize("token", [None, True, "1", 1.0, -1, 2**53, 10**30])
@pytest.mark.parametrize("read", [lambda b: read_renewal(b, HOUR), read_completion, read_failure])
def test_a_token_is_a_number_that_stores_can_hold(read: Callable[[Any], Any], token: Any) -> None:
    """Anything else is rejected before a store sees it."""
    with pytest.raises(Rejected):
        read({"token": token, "result": 1, "error": "e"})


def test_a_failure() -> None:
    """Its text is cut to what a store can hold; it may pass unless it is said to be definitive."""
    assert read_failure({"token": 1, "error": "a\0b"}) == Failure(1, "a\ufffdb", False)
    assert read_failure({"token": 1, "error": "e", "definitive": True}).definitive
    assert len(read_failure({"token": 1, "error": "e" * 5000}).error) == 2000


@pytest.mark.parametrize("change", [{"error": None}, {"error": 7}, {"definitive": 1}])
def test_failures_that_make_no_sense(change: dict[str, Any]) -> None:
    """The error is text, and `definitive` a boolean."""
    with pytest.raises(Rejected):
        read_failure({"token": 1, "error": "e"} | change)


def test_a_seal_is_made_where_none_is_given() -> None:
    """The SHA-256 is that of the RFC 8785 form; no HMAC is made in the worker's name."""
    completion = read_completion({"token": 1, "result": RESULT})
    assert completion.form == FORM
    assert completion.result == '{"a":"ü","b":1.0}'
    assert sealed(completion, KEY) == (SHA, None)


def test_right_digests_are_kept() -> None:
    """Upper case or lower case, what is right is accepted."""
    body = {"token": 1, "result": RESULT, "sha256": SHA.upper(), "hmac": MAC}
    assert sealed(read_completion(body), KEY) == (SHA, MAC)


@pytest.mark.parametrize(
    "wrong", [{"sha256": "0" * 64}, {"hmac": "0" * 64}, {"sha256": SHA, "hmac": SHA}]
)
def test_wrong_digests_are_refused(wrong: dict[str, str]) -> None:
    """One wrong digest is enough."""
    with pytest.raises(BadDigest):
        sealed(read_completion({"token": 1, "result": RESULT} | wrong), KEY)


@pytest.mark.parametrize("text", ["", "xyz", SHA[:-1], f"{SHA}0", "ü" * 64])
def test_what_is_no_digest_is_a_bad_one(text: str) -> None:
    """A digest of another form can match nothing."""
    with pytest.raises(BadDigest):
        read_completion({"token": 1, "result": RESULT, "sha256": text})


def test_without_a_key_an_hmac_is_kept_for_others() -> None:
    """Whoever reads the result may have the key."""
    body = {"token": 1, "result": RESULT, "hmac": "0" * 64}
    assert sealed(read_completion(body), None) == (SHA, "0" * 64)


def test_large_floats_stay_floats() -> None:
    """What is kept can be read and sealed again: its RFC 8785 form alone could not."""
    kept = json.loads(read_completion({"token": 1, "result": 3.5e16}).result)
    assert type(kept) is float
    assert payload_hash(kept) == payload_hash(3.5e16)


def test_results_that_have_no_canonical_form() -> None:
    """What RFC 8785 cannot express cannot be sealed, and is rejected."""
    with pytest.raises(Rejected):
        read_completion({"token": 1, "result": 2**60})


@pytest.mark.parametrize("body", [None, [], "x", 7])
def test_bodies_are_objects(body: Any) -> None:
    """Any other JSON value is rejected, by each of them."""
    for read in (read_completion, read_failure):
        with pytest.raises(Rejected):
            read(body)
