"""The control plane over real HTTP: health, metrics, docs, the inbox, its jobs, and problems."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.app.control_plane import COOLDOWN_US, READ_ONLY, WITH_KEY, Plane, is_problem, plane_on
from tests.clocks import ManualClock
from tests.http.asgi_client import call, serving
from tests.pulls.pull_words import check
from tests.servers import free_port
from towline.db import database_for
from towline.http.readiness import Readiness
from towline.pulls.parking_store import Parked, Parking
from towline_once.errors import Conflict, Rejected, StoreFull, Unavailable

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


@pytest.fixture
async def plane(sql_url: str) -> AsyncIterator[Plane]:
    """Each SQL backend in turn."""
    async with plane_on(sql_url) as opened:
        yield opened


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[httpx2.AsyncClient]:
    """An operator with a key for everything."""
    async with serving(plane.app()) as opened:
        opened.headers.update(WITH_KEY)
        yield opened


@pytest.fixture
async def local(sqlite_url: str) -> AsyncIterator[Plane]:
    """A store for what does not depend on it."""
    async with plane_on(sqlite_url) as opened:
        yield opened


async def pages(client: httpx2.AsyncClient, path: str, limit: int) -> list[list[dict[str, Any]]]:
    """All pages, in their order."""
    found, query = [], f"{path}limit={limit}"
    while True:
        page = (await client.get(query)).json()
        found.append(page["items"])
        if page["next"] is None:
            return found
        query = f"{path}limit={limit}&before={page['next']}"


async def test_a_delivery_with_its_payload_and_job(
    plane: Plane, client: httpx2.AsyncClient
) -> None:
    """The payload is shown digit for digit, beside how its job stands."""
    await plane.receive("one", payload=b'{"big": 12345678901234567890123, "half": "\\ud800"}')
    await plane.receive("one")
    response = await client.get("/api/deliveries/one")
    assert response.status_code == 200
    assert b'"payload":{"big": 12345678901234567890123, "half": "\\ud800"}' in response.content
    shown = response.json()
    assert (shown["key"], shown["delivery_id"], shown["source"]) == (
        "github:7:one",
        "one",
        "github",
    )
    assert (shown["copies"], shown["throttled"], shown["repo"]) == (1, False, "o/r")
    assert (shown["job"]["id"], shown["job"]["state"]) == (shown["job_id"], "queued")
    assert all(ISO.fullmatch(shown[name]) for name in ("received_at", "last_seen_at"))
    listed = (await client.get("/api/deliveries")).json()["items"]
    assert [{**each, "payload": 0, "job": 0} for each in listed] == [
        {**shown, "payload": 0, "job": 0}
    ]


async def test_a_delivery_says_whether_it_waits_for_its_pull_request(
    plane: Plane, client: httpx2.AsyncClient
) -> None:
    """In the list and alone, for as long as an event of it is parked."""
    await plane.receive("one", "two")
    (stored,) = await plane.inbox.find("one")
    parked = [Parked.of(stored, 0, check(pr_numbers=(7,)), 7, None)]
    parking = Parking(plane.database)
    for waits in (True, False):
        await (parking.park if waits else parking.remove)(parked)
        listed = (await client.get("/api/deliveries")).json()["items"]
        assert {one["delivery_id"]: one["parked"] for one in listed} == {"one": waits, "two": False}
        assert (await client.get("/api/deliveries/one")).json()["parked"] is waits


async def test_pages_show_each_delivery_once(plane: Plane, client: httpx2.AsyncClient) -> None:
    """Also those that were stored in one transaction and share their time."""
    for group in range(3):
        await plane.receive(*(f"{group}-{number}" for number in range(7)))
    for limit in (1, 2, 5, 7, 21, 100):
        found = await pages(client, "/api/deliveries?", limit)
        ids = [each["delivery_id"] for page in found for each in page]
        assert sorted(ids) == [f"{group}-{number}" for group in range(3) for number in range(7)]
        assert [name[0] for name in ids] == ["2"] * 7 + ["1"] * 7 + ["0"] * 7
        assert all(len(page) == limit for page in found[:-1])


async def test_redelivery_waits_for_the_cooldown(plane: Plane, client: httpx2.AsyncClient) -> None:
    """An ended job runs again under its id, once its cooldown is over; workers are woken."""
    await plane.receive("one")
    await plane.work("dead", error="no", reason="definitive")
    response = await client.post("/api/deliveries/one/redeliver")
    queued = response.json()
    assert (response.status_code, queued["status"], queued["job_id"]) == (
        202,
        "queued",
        "job_7_one",
    )
    assert 0 < COOLDOWN_US / 1e6 - queued["starts_in_seconds"] < 60
    assert await plane.begin() == []
    plane.clock.advance(COOLDOWN_US / 1e6)
    assert [(job.id, job.attempts) for job in await plane.begin()] == [("job_7_one", 1)]
    assert plane.rings == ["job_7_one"]


async def test_forced_redelivery_runs_at_once(plane: Plane, client: httpx2.AsyncClient) -> None:
    """`force` is for people who know better than a cooldown; the audit says who it was."""
    await plane.receive("one")
    await plane.work()
    response = await client.post("/api/deliveries/one/redeliver?force=true")
    assert (response.status_code, response.json()["starts_in_seconds"]) == (202, 0)
    assert [job.id for job in await plane.begin()] == ["job_7_one"]
    (line,) = plane.audited
    assert line["event"] == "redelivered"
    assert (line["by"], line["delivery_id"], line["force"]) == ("settings:operator", "one", True)


async def test_what_is_under_way_is_not_redelivered(
    plane: Plane, client: httpx2.AsyncClient
) -> None:
    """A job that waits or runs is left alone, and nothing is audited."""
    await plane.receive("one")
    for state in ("queued", "running"):
        for path in ("/api/deliveries/one/redeliver", "/api/jobs/job_7_one/redeliver"):
            response = await client.post(f"{path}?force=true")
            assert is_problem(response, 409, "in_flight")
            assert response.json()["state"] == state
        await plane.begin()
    assert (plane.audited, plane.rings) == ([], [])


async def test_two_hooks_with_one_id(plane: Plane, client: httpx2.AsyncClient) -> None:
    """The keys of both are named, and `key` chooses."""
    await plane.receive("one", hook=7)
    await plane.receive("one", hook=8)
    await plane.work()
    for response in (
        await client.get("/api/deliveries/one"),
        await client.post("/api/deliveries/one/redeliver"),
    ):
        assert is_problem(response, 409, "ambiguous")
        assert response.json()["keys"] == ["github:7:one", "github:8:one"]
    chosen = await client.post("/api/deliveries/one/redeliver", params={"key": "github:8:one"})
    assert chosen.json()["job_id"] == "job_8_one"
    shown = await client.get("/api/deliveries/one", params={"key": "github:7:one"})
    assert shown.json()["job"]["state"] == "done"
    nobody = await client.get("/api/deliveries/one", params={"key": "github:9:one"})
    assert is_problem(nobody, 404, "not_found")


async def test_ids_may_have_slashes(plane: Plane, client: httpx2.AsyncClient) -> None:
    """The id of a Jenkins delivery is an address, and is found in its path."""
    name = "https://ci.example/job/x/ 7:COMPLETED%é"
    await plane.receive(name)
    await plane.work()
    path = "https%3A%2F%2Fci.example%2Fjob/x%2F%207:COMPLETED%25%C3%A9"
    assert (await client.get(f"/api/deliveries/{path}")).json()["delivery_id"] == name
    assert (await client.post(f"/api/deliveries/{path}/redeliver")).status_code == 202


async def test_jobs_by_state_and_page(plane: Plane, client: httpx2.AsyncClient) -> None:
    """Dead jobs are found with their reason; a job is shown with what it was given and gave."""
    await plane.receive("a", "b", "c")
    await plane.work("dead", error="it broke", reason="definitive")
    await plane.receive("d")
    await plane.work(result='{"n": 1e400}')
    dead = await pages(client, "/api/jobs?state=dead&", 2)
    assert [[job["id"] for job in page] for page in dead] == [["job_7_c", "job_7_b"], ["job_7_a"]]
    assert (dead[1][0]["error"], dead[1][0]["reason"]) == ("it broke", "definitive")
    assert len((await client.get("/api/jobs")).json()["items"]) == 4
    shown = await client.get("/api/jobs/job_7_d")
    assert b'"params":{"n": 12345678901234567890},"result":{"n": 1e400}' in shown.content
    assert ISO.fullmatch(shown.json()["finished_at"])
    again = await client.post("/api/jobs/job_7_d/redeliver?force=1")
    assert (again.status_code, again.json()["job_id"]) == (202, "job_7_d")
    (line,) = plane.audited
    assert (line["job_id"], line["delivery_id"]) == ("job_7_d", None)


@pytest.mark.parametrize("payload", [b"", b"not json", b"\xff\xfe", b"[" * 100_000])
async def test_a_payload_that_cannot_be_read_is_null(local: Plane, payload: bytes) -> None:
    """Whatever the store holds, the answer is JSON."""
    await local.receive("one", payload=payload)
    async with serving(local.app()) as client:
        response = await client.get("/api/deliveries/one", headers=WITH_KEY)
    assert (response.status_code, response.json()["payload"]) == (200, None)


BAD_REQUESTS = [
    ("GET", "/api/deliveries/none", 404, "not_found"),
    ("POST", "/api/deliveries/none/redeliver", 404, "not_found"),
    ("GET", "/api/jobs/none", 404, "not_found"),
    ("POST", "/api/jobs/none/redeliver", 404, "not_found"),
    ("GET", "/api/nothing", 404, "not_found"),
    ("GET", "/api/jobs/", 404, "not_found"),
    ("DELETE", "/api/jobs", 405, "method_not_allowed"),
    ("GET", "/api/deliveries/", 422, "invalid_request"),
    ("GET", "/api/deliveries/a%00b", 422, "invalid_request"),
    ("GET", "/api/jobs/a%00b", 422, "invalid_request"),
    ("POST", "/api/jobs/a%00b/redeliver", 422, "invalid_request"),
    ("GET", "/api/jobs?before=%00", 422, "invalid_request"),
    ("GET", "/api/deliveries/x?key=%00", 422, "invalid_request"),
    ("GET", "/api/deliveries/%ED%A0%80", 404, "not_found"),
    ("GET", f"/api/jobs/{'x' * 5000}", 422, "invalid_request"),
    ("GET", "/api/jobs?limit=0", 422, "invalid_request"),
    ("GET", "/api/jobs?limit=501", 422, "invalid_request"),
    ("GET", "/api/jobs?limit=9223372036854775808", 422, "invalid_request"),
    ("GET", f"/api/jobs?limit={'9' * 5000}", 422, "invalid_request"),
    ("GET", "/api/jobs?limit=1.5", 422, "invalid_request"),
    ("GET", "/api/jobs?state=lost", 422, "invalid_request"),
    ("GET", "/api/deliveries?before=9223372036854775808-0", 422, "invalid_request"),
    ("GET", "/api/deliveries?before=yesterday", 422, "invalid_request"),
    ("POST", "/api/jobs/x/redeliver?force=perhaps", 422, "invalid_request"),
]


async def test_bad_input_is_one_clear_problem(client: httpx2.AsyncClient) -> None:
    """Whatever is wrong is named; nothing of it reaches the database as an error."""
    for method, path, status, code in BAD_REQUESTS:
        response = await client.request(method, path)
        assert is_problem(response, status, code), (path, response.text)
    assert (await client.delete("/api/jobs")).headers["allow"] == "GET"


async def test_half_a_character_is_refused(local: Plane) -> None:
    """A server that decodes paths more loosely than ours must not make it a 500."""
    reply = await call(
        local.app(),
        None,
        method="GET",
        path="/api/jobs/\ud800",
        headers=((b"x-api-key", WITH_KEY["x-api-key"].encode()),),
    )
    assert (reply.status, reply.code) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/deliveries"),
        ("GET", "/api/deliveries/x"),
        ("POST", "/api/deliveries/x/redeliver"),
        ("GET", "/api/jobs?limit=nonsense"),
        ("GET", "/api/jobs/x"),
        ("POST", "/api/jobs/x/redeliver"),
    ],
)
async def test_every_route_needs_its_scope(local: Plane, method: str, path: str) -> None:
    """Without a key 401, before anything else is looked at; commands are not for readers."""
    async with serving(local.app()) as client:
        nobody = await client.request(method, path)
        viewer = await client.request(method, path, headers={"x-api-key": READ_ONLY})
    assert is_problem(nobody, 401, "unauthorized")
    assert nobody.headers["www-authenticate"] == "Bearer"
    assert (viewer.status_code == 403) is (method == "POST")


async def test_health_and_readiness(plane: Plane, client: httpx2.AsyncClient) -> None:
    """Both need no key, and answer load balancers that only ask for the head."""
    client.headers.pop("x-api-key")
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready", "parts": {"database": "ok"}}
    for path in ("/healthz", "/readyz"):
        assert (await client.head(path)).status_code == 200


async def test_not_ready_without_a_database(caplog: pytest.LogCaptureFixture) -> None:
    """It says which part is missing but not where it is; the process is alive all the same."""
    clock = ManualClock()
    url = f"postgresql://nobody:hunter2@127.0.0.1:{free_port()}/none"
    away = Plane(database_for(url, clock, 1.0), clock)
    async with serving(away.app()) as client:
        response = await client.get("/readyz")
        listed = await client.get("/api/jobs", headers=WITH_KEY)
        assert (await client.get("/healthz")).status_code == 200
    assert is_problem(response, 503, "not_ready")
    assert response.json()["parts"] == {"database": "not reachable"}
    assert is_problem(listed, 503, "store_unavailable")
    assert all(int(each.headers["retry-after"]) > 0 for each in (response, listed))
    assert "127.0.0.1" not in response.text + listed.text
    assert "127.0.0.1" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_silent_database_is_not_ready(local: Plane) -> None:
    """The wait has an end, also where nothing answers."""
    app = local.app()
    ready = Readiness({"database": asyncio.Event().wait}, local.clock, 0.05)
    app.state.control = app.state.control._replace(ready=ready)
    async with serving(app) as client:
        response = await client.get("/readyz")
    assert is_problem(response, 503, "not_ready")
    assert response.json()["parts"] == {"database": "no answer within 0.05 s"}


async def test_metrics_for_this_machine_and_for_readers(local: Plane) -> None:
    """Who asks from elsewhere, or for somebody else, needs a key."""
    async with serving(local.app()) as client:
        here = await client.get("/metrics")
        forwarded = await client.get("/metrics", headers={"x-forwarded-for": "127.0.0.1"})
        reader = {"x-forwarded-for": "192.0.2.1", "x-api-key": READ_ONLY}
        allowed = await client.get("/metrics", headers=reader)
    assert (here.status_code, allowed.status_code) == (200, 200)
    assert "# TYPE towline_idempotency_new_total counter" in here.text
    assert here.headers["content-type"].startswith("text/plain; version=")
    assert is_problem(forwarded, 401, "unauthorized")


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        (("127.0.0.9", 1), 200),
        (("::1", 1), 200),
        (("::ffff:127.0.0.1", 1), 200),
        (("192.0.2.1", 1), 401),
        (("::ffff:192.0.2.1", 1), 401),
        (("localhost", 1), 401),
        (None, 401),
    ],
)
async def test_who_is_on_this_machine(local: Plane, peer: Any, status: int) -> None:
    """Only loopback addresses are; a name or a socket without one is not."""
    app = local.app()

    async def from_peer(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": peer}, receive, send)

    reply = await call(from_peer, None, method="GET", path="/metrics", headers=())
    assert reply.status == status


async def test_the_docs_load_nothing_from_elsewhere(local: Plane) -> None:
    """The page lists every route and names no other host; the policy forbids it, too."""
    async with serving(local.app()) as client:
        page = await client.get("/docs")
        openapi = (await client.get("/openapi.json")).json()
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"https?:|src=|<script|<link", page.text)
    assert len(openapi["paths"]) == 10
    for path, operations in openapi["paths"].items():
        assert path in page.text
        for operation in operations.values():
            for status, response in operation["responses"].items():
                assert ("application/problem+json" in response["content"]) is (status >= "400")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Rejected("no \ud800"), 422, "rejected"),
        (Unavailable("host db.internal"), 503, "store_unavailable"),
        (StoreFull("host db.internal"), 503, "store_full"),
        (Conflict("taken"), 409, "conflict"),
        (RuntimeError("a secret of db.internal"), 500, "internal_error"),
    ],
)
async def test_errors_that_routes_let_go(
    local: Plane, caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str
) -> None:
    """Each kind has its status; what nobody expected is in the log and not in the answer."""
    app = local.app()

    @app.get("/broken")
    async def broken() -> None:
        raise error

    caplog.set_level(logging.INFO)
    async with serving(app) as client:
        response = await client.get("/broken")
    assert is_problem(response, status, code)
    assert "db.internal" not in response.text
    assert ("retry-after" in response.headers) is (status == 503)
    assert ("Traceback" in caplog.text) is (status == 500)
