"""What a submitted request means, and what becomes of it, as pure decisions.

    (none) ──submit──▸ accepted ──claim──▸ in_progress ──▸ completed | failed ──TTL──▸ (none)

The status of a request is that of its job; it is derived, never stored. A client that sends the
same key and payload again is told how things stand and starts nothing; the same key with another
payload is a collision, and starts nothing either.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson

from towline.core.canonical import payload_hash
from towline.errors import Rejected

QUEUE_PREFIX: Final = "mesh:"
"""Queues of submitted kinds; Towline's own queue has no such name, so nobody can submit to it."""

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

    Not the RFC 8785 form, in which a large float looks like an integer: whoever reads that as one
    gets a value that has no such form any more.
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
