"""Two `towline serve` on one database, and one key that reaches both at the same moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx2

from tests.app.control_plane import is_problem
from tests.e2e.programs import Program
from tests.http.front_door import settings_for
from tests.http.writes import OPERATOR, REBUILD, tow, with_key
from towline.app.service import Service

ROUNDS = 6


async def test_one_key_at_two_servers_is_one_job(sql_url: str, tmp_path: Path) -> None:
    """Of two requests at once one is carried out; a retry at the other server is its replay."""
    service = Service(settings_for(sql_url))
    await service.open()
    try:
        path = f"{await tow(service)}/command"
        with ExitStack() as stack:
            servers = [stack.enter_context(serving(sql_url, tmp_path)) for _ in range(2)]
            for number in range(ROUNDS):
                await race(servers, path, f"key-{number}")
        listed = await service.jobs.listing(None, "", 10_000)
        params = {job.id: json.loads(job.params or "") for job in listed if job.kind == "command"}
        commands = [key for key, given in params.items() if given["root"] == key]
        submitted = [job for job in listed if job.kind == "build"]
        assert (len(commands), len(submitted)) == (ROUNDS, ROUNDS)
    finally:
        await service.close()


def serving(url: str, folder: Path) -> Program:
    """At its defaults, with a token and an API key; GitHub is an address that refuses."""
    settings = {
        "TOWLINE_DATABASE_URL": url,
        "TOWLINE_API_KEYS__OPERATOR__KEY": OPERATOR,
        "TOWLINE_API_KEYS__OPERATOR__SCOPES": '["admin"]',
        "TOWLINE_GITHUB__TOKEN": "a-token-of-nobody",
        "TOWLINE_GITHUB__API_URL": "http://127.0.0.1:9",
    }
    return Program(folder, settings, "serve")


async def race(servers: Sequence[Program], path: str, key: str) -> None:
    bases = [f"http://127.0.0.1:{server.port}" for server in servers]
    submission = {"kind": "build", "params": {"key": key}}
    async with httpx2.AsyncClient(timeout=30) as client:
        sent = await asyncio.gather(
            *(
                client.post(f"{base}{target}", json=body, headers=with_key(key))
                for base in bases
                for target, body in ((path, REBUILD), ("/mesh/submit_request", submission))
            )
        )
        commands, submitted = sent[::2], sent[1::2]
        assert len({answer.json()["job_id"] for answer in submitted}) == 1
        taken = [answer for answer in commands if answer.status_code == 202]
        assert taken, [answer.text for answer in commands]
        assert all(
            answer.status_code == 202 or is_problem(answer, 409, "in_flight") for answer in commands
        )
        for base in bases:
            again = await client.post(f"{base}{path}", json=REBUILD, headers=with_key(key))
            assert (again.status_code, again.content) == (202, taken[0].content)
            assert again.headers["idempotent-replayed"] == "true"
