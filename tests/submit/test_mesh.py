"""The submit API over real HTTP: specification 2's tests, workers, limits and outages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.clocks import ManualClock
from tests.fault_proxy import FaultProxy
from tests.http.asgi_client import Reply, scope_of, serving
from tests.servers import PostgresServer, at_port
from tests.submit.submitting import AuditLog
from tests.submit.submitting import Mesh as Process
from towline.db import database_for
from towline.submit.http import Mesh
from towline_once.asgi.messages import Message, Problem
from towline_once.db.statement import Database

BODY = {"kind": "build", "params": {"n": 1}, "idempotency_key": "key-0000-1"}
CLAIM = {"kinds": ["build"], "worker": "w", "lease_seconds": 60}
HMAC_KEY = b"shared secret"
CLIENTS = {b"alice": ("submit", "work"), b"bob": ("submit",), b"will": ("work",), b"": ("submit",)}


class Somebody(NamedTuple):
    id: str
    name: str


class Doorman:
    """Knows people by the name in their header, and what each may do."""

    async def check(
        self, headers: Iterable[tuple[bytes, bytes]], scope: str, peer: str | None
    ) -> Somebody:
        name = dict(headers).get(b"x-api-key")
        if name not in CLIENTS:
            raise Problem(401, "unauthorized", "a key is needed")
        if scope not in CLIENTS[name]:
            raise Problem(403, "forbidden", f"this needs the scope {scope}")
        return Somebody(f"id-{name.decode()}", name.decode())


class Site(NamedTuple):
    http: httpx2.AsyncClient
    process: Process
    clock: ManualClock

    @property
    def audit(self) -> AuditLog:
        return self.process.audit

    async def post(self, path: str, body: Any, client: str = "alice") -> httpx2.Response:
        return await self.http.post(path, json=body, headers={"x-api-key": client})

    async def submit(self, client: str = "alice", **change: Any) -> httpx2.Response:
        return await self.post("/mesh/submit_request", BODY | change, client)

    async def claim(self) -> dict[str, Any]:
        reply = await self.post("/mesh/claim", CLAIM)
        assert reply.status_code == 200
        found: dict[str, Any] = reply.json()
        return found

    async def say(self, job: dict[str, Any], word: str, **body: Any) -> httpx2.Response:
        return await self.post(
            f"/mesh/jobs/{job['job_id']}/{word}", {"token": job["token"], **body}
        )

    async def status(self, request_id: str, client: str = "alice") -> httpx2.Response:
        return await self.http.get(f"/mesh/requests/{request_id}", headers={"x-api-key": client})


@asynccontextmanager
async def site_on(database: Database, clock: ManualClock, **policy: Any) -> AsyncIterator[Site]:
    process = Process(database, clock, **policy)
    async with serving(Mesh(process.service, Doorman(), max_body_bytes=100_000)) as http:
        yield Site(http, process, clock)


@pytest.fixture
async def site(database: Database, clock: ManualClock) -> AsyncIterator[Site]:
    async with site_on(database, clock, hmac_key=HMAC_KEY) as opened:
        yield opened


def problem(reply: httpx2.Response) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/problem+json"
    return reply.status_code, reply.json()["code"]


async def test_ten_submits_of_one_key(site: Site) -> None:
    """One is accepted and queued, nine are duplicates of it; each answer has every member."""
    replies = await asyncio.gather(*[site.submit() for _ in range(10)])
    assert {reply.status_code for reply in replies} == {200}
    bodies = [reply.json() for reply in replies]
    assert all({"ok", "request_id", "job_id", "dedup", "status"} <= body.keys() for body in bodies)
    assert sorted(body["dedup"] for body in bodies) == [False] + [True] * 9
    assert len({body["job_id"] for body in bodies}) == 1
    assert await site.process.queued() == 1


async def test_other_payload(site: Site) -> None:
    """409, and an audit event that does not have the whole key."""
    first = (await site.submit()).json()
    reply = await site.submit(params={"n": 2})
    assert problem(reply) == (409, "key_collision")
    assert reply.json()["request_id"] == first["request_id"]
    [event] = site.audit.events
    assert (event["event"], event["key_prefix"]) == ("IDEMPOTENCY_KEY_COLLISION", "key-0000")
    assert len(event["old_hash_prefix"]) == len(event["new_hash_prefix"]) == 8


async def test_completed_is_cached(site: Site) -> None:
    """Submit, complete, submit again: the result comes back at once, marked as a duplicate."""
    first = (await site.submit()).json()
    job = await site.claim()
    assert (await site.say(job, "complete", result={"passed": True})).status_code == 200
    again = (await site.submit()).json()
    assert (again["status"], again["dedup"]) == ("completed", True)
    assert (again["job_id"], again["result"]) == (first["job_id"], {"passed": True})


async def test_reaped_and_late(site: Site) -> None:
    """The reaper returns the same job id, and the late worker's completion is refused as stale."""
    first = (await site.submit()).json()
    late = await site.claim()
    site.clock.advance(61)
    assert [reaped.id for reaped in await site.process.jobs.reap(10)] == [first["job_id"]]
    prompt = await site.claim()
    assert (prompt["job_id"], prompt["attempt"]) == (first["job_id"], 2)
    assert problem(await site.say(late, "complete", result=1)) == (409, "stale_lease")
    assert problem(await site.say(late, "heartbeat")) == (409, "stale_lease")
    assert problem(await site.say(late, "fail", error="e")) == (409, "stale_lease")
    assert (await site.say(prompt, "complete", result=2)).status_code == 200
    assert (await site.submit()).json()["result"] == 2


async def test_a_worker_at_work(site: Site) -> None:
    """A claim has the work and its lease, a heartbeat renews it, an empty queue is a 204."""
    await site.submit()
    job = await site.claim()
    assert job.keys() == {"job_id", "kind", "params", "token", "attempt", "lease_expires_at"}
    assert (job["kind"], job["params"], job["attempt"]) == ("build", {"n": 1}, 1)
    site.clock.advance(30)
    beat = await site.say(job, "heartbeat")
    assert beat.status_code == 200
    ends = [job["lease_expires_at"], beat.json()["lease_expires_at"]]
    first, second = (datetime.fromisoformat(end) for end in ends)
    assert (second - first).total_seconds() >= 30
    empty = await site.post("/mesh/claim", CLAIM)
    assert (empty.status_code, empty.content) == (204, b"")


async def test_the_status_of_a_request(site: Site) -> None:
    """It follows the job, and ends with the result, its digests and the time."""
    request_id = (await site.submit()).json()["request_id"]
    assert (await site.status(request_id)).json()["status"] == "accepted"
    job = await site.claim()
    assert (await site.status(request_id)).json()["status"] == "in_progress"
    form = b'{"a":1}'
    sha256 = hashlib.sha256(form).hexdigest()
    mac = hmac.new(HMAC_KEY, form, hashlib.sha256).hexdigest()
    await site.say(job, "complete", result={"a": 1.0}, sha256=sha256, hmac=mac)
    told = (await site.status(request_id)).json()
    assert (told["status"], told["result"]) == ("completed", {"a": 1})
    assert (told["sha256"], told["hmac"]) == (sha256, mac)
    assert datetime.fromisoformat(told["finished_at"]) >= datetime.fromisoformat(told["created_at"])


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"hmac": "0" * 64}, {"sha256": "short"}])
async def test_a_bad_digest(site: Site, wrong: dict[str, str]) -> None:
    """422, and the job is as it was: the right completion goes through."""
    request_id = (await site.submit()).json()["request_id"]
    job = await site.claim()
    assert problem(await site.say(job, "complete", result=1, **wrong)) == (422, "bad_digest")
    assert (await site.status(request_id)).json()["status"] == "in_progress"
    assert (await site.say(job, "complete", result=1)).status_code == 200


async def test_lost_answers(site: Site) -> None:
    """The same completion again is a 200."""
    await site.submit()
    job = await site.claim()
    replies = [await site.say(job, "complete", result=1) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].json() == replies[1].json()


async def test_failures(site: Site) -> None:
    """One that may pass is tried again later; a definitive one ends the request."""
    await site.submit()
    job = await site.claim()
    told = (await site.say(job, "fail", error="network")).json()
    assert (told["status"], told["retry_in_seconds"]) == ("in_progress", 30)
    site.clock.advance(31)
    job = await site.claim()
    told = (await site.say(job, "fail", error="no branch", definitive=True)).json()
    assert (told["status"], told["reason"]) == ("failed", "definitive")
    again = (await site.submit()).json()
    assert (again["status"], again["dedup"], again["error"]) == ("failed", True, "no branch")


async def test_a_full_queue(database: Database, clock: ManualClock) -> None:
    """429 with Retry-After; a known key is still answered."""
    async with site_on(database, clock, max_queued=1) as site:
        await site.submit()
        reply = await site.submit(idempotency_key="another")
        assert problem(reply) == (429, "queue_full")
        assert int(reply.headers["retry-after"]) >= 1
        assert (await site.submit()).json()["status"] == "in_progress"


async def test_too_much_in_flight(database: Database, clock: ManualClock) -> None:
    """A submit is accepted as deferred; a claim is a 204 that says when to come back."""
    async with site_on(database, clock, max_inflight=1) as site:
        assert "deferred" not in (await site.submit()).json()
        job = await site.claim()
        told = (await site.submit(idempotency_key="another")).json()
        assert (told["status"], told["deferred"]) == ("accepted", True)
        reply = await site.post("/mesh/claim", CLAIM)
        assert (reply.status_code, reply.headers["retry-after"]) == (204, "1")
        await site.say(job, "complete", result=1)
        assert (await site.claim())["job_id"] == told["job_id"]


async def test_a_large_result(database: Database, clock: ManualClock) -> None:
    """A duplicate gets a tombstone, the status all of it."""
    async with site_on(database, clock, max_cached_bytes=100) as site:
        request_id = (await site.submit()).json()["request_id"]
        result = "x" * 80_000
        assert (await site.say(await site.claim(), "complete", result=result)).status_code == 200
        again = (await site.submit()).json()
        assert again["result"] == {"result_omitted": True, "bytes": 80_002}
        assert (await site.status(request_id)).json()["result"] == result


async def test_whose_key(site: Site) -> None:
    """Keys belong to the client whose API key was used, named or not; others see nothing of it."""
    bodies = [(await site.submit(client)).json() for client in ("alice", "bob", "")]
    assert [body["dedup"] for body in bodies] == [False] * 3
    for client, reader in (("bob", "alice"), ("alice", "bob")):
        mine = bodies[("alice", "bob").index(client)]["request_id"]
        assert problem(await site.status(mine, reader)) == (404, "unknown_request")
        assert (await site.status(mine, client)).status_code == 200


async def test_scopes(site: Site) -> None:
    """Who may submit may not work, and the other way round; without a key nobody does either."""
    job = "/mesh/jobs/job_1/complete"
    assert problem(await site.post("/mesh/claim", CLAIM, "bob")) == (403, "forbidden")
    assert problem(await site.post(job, {"token": 1}, "bob")) == (403, "forbidden")
    assert problem(await site.submit("will")) == (403, "forbidden")
    assert problem(await site.status("x", "will")) == (403, "forbidden")
    assert problem(await site.http.post("/mesh/submit_request", json=BODY)) == (401, "unauthorized")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, "malformed")),
        (b"{", (400, "malformed")),
        (b"\xff", (400, "malformed")),
        (b'{"kind":"a","kind":"b"}', (400, "malformed")),
        (b'{"kind":"a","params":{"n":NaN}}', (400, "malformed")),
        (b"[" * 100_000, (400, "malformed")),
        (b"[]", (422, "invalid_request")),
        (b"{}", (422, "invalid_request")),
        (b'{"kind":"towline:own"}', (422, "invalid_request")),
        (b'{"kind":"a","params":{"n":9007199254740993}}', (422, "invalid_request")),
        (b'{"kind":"a","idempotency_key":"\\u0000"}', (422, "invalid_request")),
        (b"x" * 100_001, (413, "too_large")),
    ],
)
async def test_bodies_that_are_refused(site: Site, body: bytes, expected: tuple[int, str]) -> None:
    """Each with its reason, and nothing is queued."""
    reply = await site.http.post(
        "/mesh/submit_request", content=body, headers={"x-api-key": "alice"}
    )
    assert problem(reply) == expected
    assert await site.process.queued() == 0


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/mesh/submit_request", (405, "method_not_allowed")),
        ("POST", "/mesh/requests/x", (405, "method_not_allowed")),
        ("GET", "/mesh/other", (404, "not_found")),
        ("GET", "/mesh/requests/a%00b", (404, "not_found")),
        ("GET", "/mesh/requests/none", (404, "unknown_request")),
        ("POST", "/mesh/jobs/none/explode", (404, "not_found")),
        ("POST", "/mesh/jobs/a%00b/complete", (404, "not_found")),
        ("POST", "/mesh/jobs/none/complete", (404, "unknown_job")),
        ("POST", "/mesh/jobs/none/heartbeat", (404, "unknown_job")),
    ],
)
async def test_addresses(site: Site, method: str, path: str, expected: tuple[int, str]) -> None:
    """What is not there is told apart from what is asked for in the wrong way."""
    body = json.dumps({"token": 1, "result": 1})
    reply = await site.http.request(method, path, content=body, headers={"x-api-key": "alice"})
    assert problem(reply) == expected


async def test_the_store_is_away(
    postgres_server: PostgresServer, postgres_url: str, clock: ManualClock
) -> None:
    """503 with Retry-After on each route, and no false success; afterwards all goes on."""
    async with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        database = database_for(at_port(postgres_url, proxy.port), clock, 1.0)
        async with site_on(database, clock) as site:
            request_id = (await site.submit()).json()["request_id"]
            job = await site.claim()
            proxy.cut()
            site.clock.advance(2)
            replies = [
                await site.submit(idempotency_key="another"),
                await site.status(request_id),
                await site.post("/mesh/claim", CLAIM),
                *[
                    await site.say(job, word, error="e")
                    for word in ("heartbeat", "complete", "fail")
                ],
            ]
            assert [problem(reply) for reply in replies] == [(503, "store_unavailable")] * 6
            assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies)
            proxy.restore()
            assert (await site.say(job, "complete", result=1)).status_code == 200
            assert (await site.submit(idempotency_key="another")).json()["dedup"] is False
        await database.aclose()


async def test_a_slow_body_is_not_waited_for(database: Database, clock: ManualClock) -> None:
    """A client that stops in mid-body is answered with 408."""
    app = Mesh(Process(database, clock).service, Doorman(), body_seconds=0.05)
    incoming = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    reply = Reply()
    scope = scope_of("POST", "/mesh/submit_request", [(b"x-api-key", b"alice")], b"")
    await app(scope, receive, reply.take)
    assert (reply.status, reply.code) == (408, "too_slow")


async def test_a_client_that_hangs_up(database: Database, clock: ManualClock) -> None:
    """Nobody is there to answer, and nothing is queued."""
    process = Process(database, clock)
    incoming: list[Message] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b"{", "more_body": True},
    ]

    async def receive() -> Message:
        return incoming.pop()

    reply = Reply()
    scope = scope_of("POST", "/mesh/submit_request", [(b"x-api-key", b"alice")], b"")
    await Mesh(process.service, Doorman())(scope, receive, reply.take)
    assert (reply.status, await process.queued()) == (0, 0)
