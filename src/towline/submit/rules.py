"""What a submitted request means, and what becomes of it, as pure decisions.

    (none) ──submit──▸ accepted ──claim──▸ in_progress ──▸ completed | failed ──TTL──▸ (none)

The status of a request is that of its job; it is derived, never stored. A client that sends the
same key and payload again is told how things stand and starts nothing; the same key with another
payload is a collision, and starts nothing either.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson

from towline_once.canonical_json import MAX_INTEGER, canonical, payload_hash
from towline_once.errors import Rejected

QUEUE_PREFIX: Final = "mesh:"
"""Queues of submitted kinds. Towline's own queue has no such name: no client can submit to it."""

LONGEST_KIND: Final = 100
LONGEST_KEY: Final = 255
LONGEST_NODE_ID: Final = 255
SHOWN_CHARACTERS: Final = 8

_KIND: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_KIND}}}")

Status: TypeAlias = Literal["accepted", "in_progress", "completed", "failed"]
Decision: TypeAlias = Literal["new", "replace", "collision"] | Status
Pressure: TypeAlias = Literal["open", "deferred", "full"]


class Submission(NamedTuple):
    """A submit body that makes sense."""

    kind: str
    params: str
    """JSON."""
    payload_hash: str
    key: str | None
    node_id: str | None


class Keep(NamedTuple):
    """How long a finished request answers for its key, in microseconds."""

    completed_us: int
    failed_us: int


class Standing(NamedTuple):
    """What the store holds under a key: a request and its job, whose `state` is None if deleted."""

    request_id: str
    payload_hash: str
    job_id: str
    state: str | None
    attempts: int
    finished_us: int | None


class Load(NamedTuple):
    """Jobs that wait and jobs that run, over all kinds."""

    queued: int
    running: int


class LoadLimits(NamedTuple):
    max_queued: int
    max_inflight: int


def read_submission(body: Any) -> Submission:
    """Check a submit body; `Rejected` says what is wrong with it."""
    if not isinstance(body, dict):
        raise Rejected("the body is a JSON object")
    kind = checked_kind(body.get("kind"))
    params = body.get("params", {})
    if not isinstance(params, dict):
        raise Rejected("params is a JSON object")
    digest = payload_hash({"kind": kind, "params": params})
    return Submission(
        kind,
        stored_json(params),
        digest,
        printable(body.get("idempotency_key"), "idempotency_key", LONGEST_KEY),
        _node_id(body.get("client")),
    )


def stored_json(value: Any) -> str:
    """JSON as it is kept and given out, equal for equal values.

    Not the RFC 8785 form, in which a large float looks like an integer: a reader that takes it for
    one gets a value that has no such form any more.
    """
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def checked_kind(kind: Any) -> str:
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise Rejected(f"a kind is 1 to {LONGEST_KIND} letters, digits, dots, dashes, underscores")
    return kind


def printable(text: Any, name: str, longest: int) -> str | None:
    """Text that every store can hold and index; None is as good as absent."""
    if text is None:
        return None
    if not isinstance(text, str) or not 1 <= len(text) <= longest or not text.isprintable():
        raise Rejected(f"{name} is 1 to {longest} printable characters")
    return text


def _node_id(client: Any) -> str | None:
    if client is None:
        return None
    if not isinstance(client, dict):
        raise Rejected("client is a JSON object")
    return printable(client.get("node_id"), "client.node_id", LONGEST_NODE_ID)


def decide(
    standing: Standing | None, request_id: str, payload: str, now_us: int, keep: Keep
) -> Decision:
    """What a submit with this payload hash meets under its key."""
    if standing is None:
        return "new"
    if standing.request_id == request_id:
        return "accepted"  # it is this very request, whose answer was lost
    if has_expired(standing, now_us, keep):
        return "replace"
    if standing.payload_hash != payload:
        return "collision"
    status = status_of(standing.state, standing.attempts)
    return "in_progress" if status == "accepted" else status


def has_expired(standing: Standing, now_us: int, keep: Keep) -> bool:
    """Only what has ended expires; a job that was deleted had ended long before."""
    if standing.state is None:
        return True
    if standing.finished_us is None:
        return False
    ttl = keep.completed_us if standing.state == "done" else keep.failed_us
    return standing.finished_us + ttl <= now_us


def status_of(state: str | None, attempts: int) -> Status:
    """The status of a request by its job."""
    if state == "done":
        return "completed"
    if state == "dead":
        return "failed"
    return "accepted" if state == "queued" and attempts == 0 else "in_progress"


def cached_result(result: str | None, size: int | None) -> str | None:
    """What a duplicate is shown of a result (JSON), or a tombstone for one that is too large."""
    if result is None and size is not None:
        return orjson.dumps({"result_omitted": True, "bytes": size}).decode()
    return result


def pressure(load: Load, limits: LoadLimits) -> Pressure:
    """Whether a new job may come in, may come in but has to wait, or may not."""
    if load.queued >= limits.max_queued:
        return "full"
    return "deferred" if load.running >= limits.max_inflight else "open"


def shown(text: str) -> str:
    """What of a key or a hash may be logged; never all of it."""
    return text[: SHOWN_CHARACTERS if len(text) > SHOWN_CHARACTERS else len(text) // 2]


# ------------------------------------------------------------------ remote workers
# What remote workers say, and how their results are sealed.
#
# The SHA-256 of a result is taken over its RFC 8785 form, so that a worker, the service and each
# client that reads the result compute the same one, however each writes JSON. A worker that shares
# a key with the service can add an HMAC-SHA256 over the same bytes.

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

    Without a key an HMAC cannot be checked here. It is kept all the same: the client that reads the
    result may have the key.
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
