"""Commands over real HTTP: for one pull request and for many, through the real bridge."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from tests.app.control_plane import READ_ONLY, WITH_KEY, is_problem
from tests.http.asgi_client import serving
from tests.pulls.tow_plane import AS_DEPUTY, TowPlane
from towline.pulls.command_rules import ALLOWED_IN
from towline.pulls.lifecycle import STATES
from towline.slash_commands import COMMANDS

REBUILD = {"command": "/rebuild"}
HOUR = 3600.0


async def params_of(plane: TowPlane, job_id: str) -> dict[str, Any]:
    job = await plane.jobs.read(job_id)
    assert job is not None
    assert job.kind == "command"
    read: dict[str, Any] = json.loads(job.params or "")
    return read


async def test_a_command_is_queued(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """202 with the job; who ordered it is the name of the key, in the job and in the audit."""
    await plane.tow("octo-org/app", 7, state="CHECKS_FAILED")
    response = await client.post("/api/pr/octo-org/app/7/command", json=REBUILD)
    assert response.status_code == 202
    told = response.json()
    assert (told["command"], told["repo"], told["number"]) == ("/rebuild", "octo-org/app", 7)
    params = await params_of(plane, told["job_id"])
    assert (params["command"], params["source"]) == ("/rebuild", "admin-api")
    assert params["requested_by"] == "deputy"
    assert plane.rings == [told["job_id"]]
    (line,) = plane.audited
    assert (line["event"], line["by"], line["job_id"]) == (
        "COMMAND_ORDERED", "deputy", told["job_id"],
    )  # fmt: skip


async def test_which_command_fits_which_state(local: TowPlane) -> None:
    """Every command in every state: 202 where the matrix allows it, else 409 and no job."""
    async with serving(local.app()) as client:
        client.headers.update(AS_DEPUTY)
        for number, state in enumerate(STATES, 1):
            await local.tow("o/r", number, state=state)
            for command in COMMANDS:
                path = f"/api/pr/o/r/{number}/command"
                response = await client.post(path, json={"command": command})
                if state in ALLOWED_IN[command]:
                    assert response.status_code == 202, (state, command)
                else:
                    assert is_problem(response, 409, "not_now"), (state, command)
                    assert state in response.json()["detail"]
    allowed = sum(len(states) for states in ALLOWED_IN.values())
    assert len(local.rings) == len(local.audited) == allowed


BAD: list[tuple[str, Any, int, str]] = [
    ("o/r/1", {"command": "/explode"}, 422, "unknown_command"),
    ("o/r/1", {"command": "rebuild"}, 422, "unknown_command"),
    ("o/r/1", {"command": ""}, 422, "invalid_request"),
    ("o/r/1", {"command": 5}, 422, "invalid_request"),
    ("o/r/1", {}, 422, "invalid_request"),
    ("o/r/1", {**REBUILD, "force": True}, 422, "invalid_request"),
    ("o/r/1", [], 422, "invalid_request"),
    ("o/r/1", b"", 400, "malformed"),
    ("o/r/1", b"not json", 400, "malformed"),
    ("o/r/1", b'{"command": NaN}', 400, "malformed"),
    ("o/r/1", b'{"command": "/why", "command": "/merge"}', 400, "malformed"),
    ("o/r/1", b"x" * 300_000, 413, "too_large"),
    ("o/r/2", REBUILD, 404, "unknown_pull"),
    ("o/none/1", REBUILD, 404, "unknown_pull"),
    ("none/1", REBUILD, 404, "unknown_repo"),
    ("o/r/0", REBUILD, 422, "invalid_request"),
    ("o/r/x", REBUILD, 422, "invalid_request"),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), BAD)
async def test_what_is_no_order(
    local: TowPlane, path: str, body: Any, status: int, code: str
) -> None:
    """Each wrong order has its status and code, and queues nothing."""
    await local.tow("o/r", 1, state="CHECKS_FAILED")
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with serving(local.app()) as client:
        response = await client.post(f"/api/pr/{path}/command", content=raw, headers=WITH_KEY)
    assert is_problem(response, status, code), response.text
    assert (local.rings, local.audited) == ([], [])


async def test_many_at_once(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """Each is taken or refused by itself, in the order given, and each once."""
    for number in (1, 2):
        await plane.tow("octo-org/app", number, state="CHECKS_FAILED")
    await plane.tow("octo-org/app", 3, state="MERGED")
    names = ["octo-org/app#1", "app#2", "octo-org/app#3", "octo-org/app#4", "none#1", "x"]
    names += ["app#2", "octo-org/app#2", "app#1"]
    response = await client.post("/api/prs/commands", json={**REBUILD, "prs": names})
    assert response.status_code == 202
    told = response.json()
    assert (told["accepted"], told["refused"]) == (2, 4)
    assert [(one["pr"], one["status"], one["code"]) for one in told["results"]] == [
        ("octo-org/app#1", "accepted", None),
        ("octo-org/app#2", "accepted", None),
        ("octo-org/app#3", "refused", "not_now"),
        ("octo-org/app#4", "refused", "unknown_pull"),
        ("none#1", "refused", "unknown_repo"),
        ("x", "refused", "invalid_request"),
    ]
    params = await params_of(plane, told["results"][1]["job_id"])
    assert (params["number"], params["requested_by"]) == (2, "deputy")
    (line,) = plane.audited
    assert (line["event"], line["accepted"], line["refused"]) == ("COMMANDS_ORDERED", 2, 4)


async def test_many_by_a_filter(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """Fifteen that an outage left behind, by one line; those that are not stale are left alone."""
    for number in range(1, 16):
        await plane.tow("octo-org/app", number, state="CHECKS_FAILED", ago=2 * HOUR)
    await plane.tow("octo-org/app", 16, state="CHECKS_FAILED")
    await plane.tow("octo-org/app", 17, state="APPROVED", ago=2 * HOUR)
    wanted = {"state": "CHECKS_FAILED", "stale": True}
    response = await client.post("/api/prs/commands", json={**REBUILD, "filter": wanted})
    told = response.json()
    assert (told["accepted"], told["refused"]) == (15, 0)
    assert [one["pr"] for one in told["results"]] == [f"octo-org/app#{n}" for n in range(1, 16)]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (REBUILD, 422, "invalid_request"),
        ({**REBUILD, "filter": {}}, 422, "invalid_request"),
        ({**REBUILD, "filter": {"stat": "CREATED"}}, 422, "invalid_request"),
        ({**REBUILD, "filter": {"state": "LOST"}}, 422, "invalid_request"),
        ({**REBUILD, "filter": {"repo": "none"}}, 404, "unknown_repo"),
        ({**REBUILD, "prs": ["o/r#1"], "filter": {"repo": "o/r"}}, 422, "invalid_request"),
        ({**REBUILD, "prs": ["o/r#1"] * 501}, 422, "invalid_request"),
        ({"command": "/explode", "prs": ["o/r#1"]}, 422, "unknown_command"),
        ({"command": "/explode", "prs": []}, 422, "unknown_command"),
    ],
)
async def test_what_is_no_batch(local: TowPlane, body: Any, status: int, code: str) -> None:
    """A batch that is wrong as a whole queues nothing."""
    await local.tow("o/r", 1, state="CHECKS_FAILED")
    async with serving(local.app()) as client:
        response = await client.post("/api/prs/commands", json=body, headers=AS_DEPUTY)
    assert is_problem(response, status, code), response.text
    assert (local.rings, local.audited) == ([], [])


async def test_a_filter_that_finds_too_many(local: TowPlane) -> None:
    """More than 500 at once are refused, not cut off."""
    for number in range(1, 502):
        await local.tow("o/r", number, state="CHECKS_FAILED")
    async with serving(local.app()) as client:
        client.headers.update(AS_DEPUTY)
        wanted = {**REBUILD, "filter": {"repo": "o/r"}}
        assert is_problem(await client.post("/api/prs/commands", json=wanted), 422, "too_many")
        some = {**REBUILD, "prs": [f"o/r#{number}" for number in range(1, 501)]}
        told = (await client.post("/api/prs/commands", json=some)).json()
    assert (told["accepted"], told["refused"]) == (500, 0)


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        ("GET", "/api/prs", "read"),
        ("GET", "/api/prs/stale", "read"),
        ("GET", "/api/pr/o/r/1/status", "read"),
        ("GET", "/api/pr/r/1/status", "read"),
        ("POST", "/api/pr/o/r/1/command", "command"),
        ("POST", "/api/pr/r/1/command", "command"),
        ("POST", "/api/prs/commands", "command"),
    ],
)
async def test_what_a_key_may_do(local: TowPlane, method: str, path: str, needs: str) -> None:
    """To look needs `read`, to order needs `command`; without a key there is nothing."""
    await local.tow("o/r", 1, state="CHECKS_FAILED")
    body = {**REBUILD, "prs": []} if path == "/api/prs/commands" else REBUILD
    async with serving(local.app()) as client:
        content = json.dumps(body) if method == "POST" else None
        nobody = await client.request(method, path, content=content)
        reader = await client.request(
            method, path, content=content, headers={"x-api-key": READ_ONLY}
        )
        deputy = await client.request(method, path, content=content, headers=AS_DEPUTY)
    assert is_problem(nobody, 401, "unauthorized")
    assert deputy.status_code in (200, 202), deputy.text
    if needs == "read":
        assert reader.status_code == 200
    else:
        assert is_problem(reader, 403, "forbidden")


async def test_the_docs_show_what_to_send(local: TowPlane) -> None:
    """The page for people has each route with the members of its body; no reference is broken."""
    async with serving(local.app()) as client:
        page = (await client.get("/docs")).text
        openapi = (await client.get("/openapi.json")).json()
    for path in ("/api/prs/commands", "/api/pr/{owner}/{name}/{number}/command"):
        assert path in page
        assert openapi["paths"][path]["post"]["requestBody"]["required"] is True
    assert "Each OWNER/NAME#NUMBER." in page
    assert "/close-and-reopen" in page
    text = json.dumps(openapi)
    known = {f"#/components/schemas/{name}" for name in openapi["components"]["schemas"]}
    assert set(re.findall(r'"\$ref": "([^"]+)"', text)) <= known
