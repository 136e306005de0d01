"""What remote workers say, and how their results are sealed.

The SHA-256 of a result is taken over its RFC 8785 form, so that a worker, the service and whoever
reads the result compute the same one, however each writes JSON. A worker that shares a key with
the service can add an HMAC-SHA256 over the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final, NamedTuple

from towline.core.canonical import MAX_INTEGER, canonical
from towline.core.submission import checked_kind, printable, stored_json
from towline.errors import Rejected

MOST_KINDS: Final = 100
LONGEST_WORKER: Final = 200
LONGEST_ERROR: Final = 2000
SHORTEST_LEASE_US: Final = 1_000_000
DEFAULT_LEASE_US: Final = 60_000_000

_HEX_DIGITS: Final = frozenset("0123456789abcdef")


class BadDigest(Rejected):
    """A result is not what its digest says: damaged on its way, or not from a worker of ours."""


class Claim(NamedTuple):
    """A worker asks for a job of one of these kinds, the first ones first."""

    kinds: tuple[str, ...]
    worker: str
    lease_us: int


class Renewal(NamedTuple):
    token: int
    lease_us: int | None
    """None: as long as before."""


class Completion(NamedTuple):
    token: int
    result: str
    """JSON."""
    form: bytes
    """Its RFC 8785 form."""
    sha256: str | None
    hmac: str | None


class Failure(NamedTuple):
    token: int
    error: str
    definitive: bool


class Seal(NamedTuple):
    """What is kept beside a result."""

    sha256: str
    hmac: str | None


def read_claim(body: Any, longest_lease_us: int) -> Claim:
    body = _object(body)
    kinds = body.get("kinds")
    if not isinstance(kinds, list) or not 1 <= len(kinds) <= MOST_KINDS:
        raise Rejected(f"kinds is a list of 1 to {MOST_KINDS} kinds")
    worker = printable(body.get("worker"), "worker", LONGEST_WORKER)
    if worker is None:
        raise Rejected("worker is missing: a name by which people know it")
    lease_us = _lease(body, longest_lease_us) or min(DEFAULT_LEASE_US, longest_lease_us)
    return Claim(tuple(dict.fromkeys(map(checked_kind, kinds))), worker, lease_us)


def read_renewal(body: Any, longest_lease_us: int) -> Renewal:
    body = _object(body)
    return Renewal(_token(body), _lease(body, longest_lease_us))


def read_completion(body: Any) -> Completion:
    body = _object(body)
    result = body.get("result")
    form = canonical(result)
    given = _digest(body, "sha256"), _digest(body, "hmac")
    return Completion(_token(body), stored_json(result), form, *given)


def read_failure(body: Any) -> Failure:
    body = _object(body)
    error, definitive = body.get("error"), body.get("definitive", False)
    if not isinstance(error, str):
        raise Rejected("error is text that says what went wrong")
    if not isinstance(definitive, bool):
        raise Rejected("definitive is true or false")
    return Failure(_token(body), error[:LONGEST_ERROR].replace("\0", "\ufffd"), definitive)


def sealed(completion: Completion, key: bytes | None) -> Seal:
    """The digests to keep; `BadDigest` if one that was given is wrong.

    Without a key an HMAC cannot be checked here. It is kept all the same: whoever reads the result
    may have the key.
    """
    digest = hashlib.sha256(completion.form).hexdigest()
    _compare("sha256", completion.sha256, digest)
    if key is not None:
        right = hmac.new(key, completion.form, hashlib.sha256).hexdigest()
        _compare("hmac", completion.hmac, right)
    return Seal(digest, completion.hmac)


def _compare(name: str, given: str | None, right: str) -> None:
    if given is not None and not hmac.compare_digest(given, right):
        raise BadDigest(f"the {name} is not that of the RFC 8785 form of the result")


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Rejected("the body is a JSON object")
    return body


def _token(body: dict[str, Any]) -> int:
    token = body.get("token")
    if type(token) is not int or not 0 <= token <= MAX_INTEGER:
        raise Rejected("token is the number that came with the claim")
    return token


def _lease(body: dict[str, Any], longest_us: int) -> int | None:
    """No longer than is allowed: the answer says when it ends."""
    seconds = body.get("lease_seconds")
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or seconds < SHORTEST_LEASE_US / 1e6:
        raise Rejected("lease_seconds is a number of at least 1")
    return int(min(seconds, longest_us / 1e6) * 1e6)


def _digest(body: dict[str, Any], name: str) -> str | None:
    text = body.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise Rejected(f"{name} is text: 64 hexadecimal digits")
    digits = text.lower()
    if len(digits) != 64 or not _HEX_DIGITS.issuperset(digits):
        raise BadDigest(f"{name} is 64 hexadecimal digits")
    return digits
