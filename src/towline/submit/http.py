"""The submit API over HTTP, as a plain ASGI app: clients submit, remote workers claim and report.

Whatever bytes come in, the answer is a 4xx at worst; a store that is away is a 503.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from towline.http.auth import peer_of
from towline.jobs.model import Claimed
from towline.submit.rules import (
    BadDigest,
    Status,
    read_claim,
    read_completion,
    read_failure,
    read_renewal,
    read_submission,
)
from towline.submit.service import Receipt, Submit, UnknownJob
from towline.submit.store import RequestRecord
from towline_once.asgi.exchange import KEY_HEADERS, key_of
from towline_once.asgi.messages import (
    Hangup,
    Message,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    json_messages,
    messages,
    read_body,
)
from towline_once.canonical_json import parse_json
from towline_once.errors import Rejected, Stale, TowlineError

_RETRY_SECONDS: Final = 5.0
_READ_ON_THE_LOOP: Final = 65_536
"""Larger bodies are parsed on a thread, lest everybody else wait for it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REQUEST: Final = re.compile(r"/mesh/requests/([A-Za-z0-9_-]{1,64})")
_JOB: Final = re.compile(r"/mesh/jobs/([A-Za-z0-9_-]{1,64})/(heartbeat|complete|fail)")

_KEY_HEADERS: Final = [name.lower().encode() for name in KEY_HEADERS]

_log = logging.getLogger("towline.mesh")
T = TypeVar("T")


def is_of_workers(scope: Scope) -> bool:
    """All but the submission, whose key is stored together with the request and its job."""
    path: str = scope["path"]
    return path.startswith("/mesh/") and path != "/mesh/submit_request"


class Client(Protocol):
    """Whose key it is."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


class Keys(Protocol):
    async def check(
        self, headers: Iterable[tuple[bytes, bytes]], scope: str, peer: str | None
    ) -> Client:
        """Who is asking, if they may; else a `Problem`."""
        ...


class _Call(NamedTuple):
    client: str
    owner: str
    """The API key itself, to which idempotency keys belong."""
    subject: str
    """The id in the path."""
    scope: Scope
    receive: Receive


class _Route(NamedTuple):
    method: str
    needs: str
    handler: Callable[[_Call], Awaitable[list[Message]]]
    subject: str = ""


class Mesh:
    """Serves all of `/mesh/…`. The client of a key is the name of the API key that was used."""

    def __init__(
        self,
        submit: Submit,
        keys: Keys,
        *,
        max_body_bytes: int = 1_048_576,
        body_seconds: float = 10.0,
    ) -> None:
        self._submit = submit
        self._keys = keys
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds
        self._fixed = {
            "/mesh/submit_request": _Route("POST", "submit", self._submit_request),
            "/mesh/claim": _Route("POST", "work", self._claim),
        }
        self._of_job = {
            "heartbeat": self._heartbeat,
            "complete": self._complete,
            "fail": self._fail,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            told = await self._answered(scope, receive)
        except Problem as problem:
            told = problem.messages()
        except Hangup:
            return
        await answer(send, told)

    async def _answered(self, scope: Scope, receive: Receive) -> list[Message]:
        route = self._route(scope["path"])
        if route is None:
            raise Problem(404, "not_found", "there is nothing at this address")
        if scope["method"] != route.method:
            problem = Problem(405, "method_not_allowed", f"this takes {route.method}")
            problem.headers.append((b"allow", route.method.encode()))
            raise problem
        client = await self._keys.check(scope["headers"], route.needs, peer_of(scope))
        call = _Call(client.name or client.id, client.id, route.subject, scope, receive)
        try:
            return await route.handler(call)
        except TowlineError as error:
            raise _problem_of(error) from error

    def _route(self, path: str) -> _Route | None:
        if found := self._fixed.get(path):
            return found
        if job := _JOB.fullmatch(path):
            return _Route("POST", "work", self._of_job[job[2]], job[1])
        if request := _REQUEST.fullmatch(path):
            return _Route("GET", "submit", self._status, request[1])
        return None

    async def _read(self, call: _Call, reader: Callable[[Any], T]) -> T:
        body = await read_body(call.scope, call.receive, self._max_body_bytes, self._body_seconds)
        if len(body) <= _READ_ON_THE_LOOP:
            return _understood(body, reader)
        return await asyncio.to_thread(_understood, body, reader)

    # ------------------------------------------------------------------ clients

    async def _submit_request(self, call: _Call) -> list[Message]:
        sent = key_of(call.scope, _KEY_HEADERS)
        submission = await self._read(call, read_submission)
        if submission.key is None and sent is not None:
            submission = submission._replace(key=sent)
        receipt = await self._submit.submit(call.client, submission, call.owner)
        if receipt.status == "collision":
            raise Problem(
                409,
                "key_collision",
                "this idempotency key was used before with another kind or other params",
                ok=False,
                request_id=receipt.request_id,
            )
        if receipt.status == "queue_full":
            problem = Problem(429, "queue_full", "too much is waiting; try again later", ok=False)
            raise problem.retry_after(receipt.retry_after)
        return json_messages(200, _told(receipt))

    async def _status(self, call: _Call) -> list[Message]:
        found = await self._submit.status(call.client, call.subject)
        if found is None:
            raise Problem(404, "unknown_request", "there is no such request of yours, or no longer")
        return json_messages(200, _shown(*found))

    # ------------------------------------------------------------------ workers

    async def _claim(self, call: _Call) -> list[Message]:
        longest = self._submit.policy.longest_lease_us
        claim = await self._read(call, lambda body: read_claim(body, longest))
        offer = await self._submit.claim(claim)
        if offer.job is not None:
            return json_messages(200, _offered(offer.job))
        wait = [(b"retry-after", b"%d" % max(1, offer.retry_after))] if offer.retry_after else []
        return messages(204, wait, b"")

    async def _heartbeat(self, call: _Call) -> list[Message]:
        longest = self._submit.policy.longest_lease_us
        renewal = await self._read(call, lambda body: read_renewal(body, longest))
        end = await self._submit.heartbeat(call.subject, renewal)
        return json_messages(200, {"ok": True, "lease_expires_at": _iso(end)})

    async def _complete(self, call: _Call) -> list[Message]:
        completion = await self._read(call, read_completion)
        sha256 = await self._submit.complete(call.subject, completion)
        told = {"ok": True, "job_id": call.subject, "status": "completed", "sha256": sha256}
        return json_messages(200, told)

    async def _fail(self, call: _Call) -> list[Message]:
        failure = await self._read(call, read_failure)
        verdict = await self._submit.fail(call.subject, failure)
        told: dict[str, Any] = {"ok": True, "job_id": call.subject}
        if verdict.dead:
            told |= {"status": "failed", "reason": verdict.reason}
        else:
            told |= {"status": "in_progress", "retry_in_seconds": verdict.delay_us / 1e6}
        return json_messages(200, told)


def _understood(body: bytes, reader: Callable[[Any], T]) -> T:
    try:
        value = parse_json(body)
    except Rejected as error:
        raise Problem(400, "malformed", str(error)) from None
    try:
        return reader(value)
    except BadDigest:
        raise
    except Rejected as error:
        raise Problem(422, "invalid_request", str(error)) from None


def _problem_of(error: TowlineError) -> Problem:
    if isinstance(error, BadDigest):
        return Problem(422, "bad_digest", str(error))
    if isinstance(error, UnknownJob):
        return Problem(404, "unknown_job", str(error))
    if isinstance(error, Stale):
        return Problem(409, "stale_lease", str(error))
    _log.warning("answered with 503: %s", error)
    problem = Problem(503, "store_unavailable", "the store cannot be used now; try again later")
    return problem.retry_after(_RETRY_SECONDS)


def _told(receipt: Receipt) -> dict[str, Any]:
    told: dict[str, Any] = {
        "ok": True,
        "request_id": receipt.request_id,
        "job_id": receipt.job_id,
        "dedup": receipt.dedup,
        "status": receipt.status,
    }
    if receipt.deferred:
        told["deferred"] = True
    if receipt.status == "completed":
        told |= {"result": _json(receipt.result), "sha256": receipt.sha256, "hmac": receipt.hmac}
    elif receipt.status == "failed":
        told["error"] = receipt.error
    return told


def _shown(status: Status, record: RequestRecord) -> dict[str, Any]:
    return {
        "ok": True,
        "request_id": record.request_id,
        "job_id": record.job_id,
        "kind": record.kind,
        "status": status,
        "attempts": record.attempts,
        "created_at": _iso(record.created_us),
        "updated_at": _iso(record.updated_us),
        "finished_at": _iso(record.finished_us),
        "result": _json(record.result),
        "sha256": record.sha256,
        "hmac": record.hmac,
        "error": record.error,
        "reason": record.reason,
    }


def _offered(job: Claimed) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "kind": job.kind,
        "params": _json(job.params),
        "token": job.token,
        "attempt": job.attempts,
        "lease_expires_at": _iso(job.lease_expires_us),
    }


def _json(text: str | None) -> Any:
    """Stored JSON, written as it is."""
    return None if text is None else orjson.Fragment(text)


def _iso(us: int | None) -> str | None:
    if us is None:
        return None
    moment = _EPOCH + timedelta(microseconds=us)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
