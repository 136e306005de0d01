"""Numbers of the settings: each has a largest value, and the service works with all of those."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from scripts.reference_settings import every_setting
from tests.forges.samples import SECRET
from tests.http.front_door import FrontDoor, front_door, push
from towline.config import Settings

KEY = {"x-api-key": "0123456789abcdef"}
SCOPES = ["admin", "submit", "work"]


def numbers() -> Iterator[tuple[str, str]]:
    """Those that are there by themselves, with what the reference says of their range."""
    for one in every_setting(Settings):
        if "number" in one.kind and "NAME" not in one.path and "[" not in one.path:
            yield one.path, one.kind


def largest() -> dict[str, Any]:
    """The tables with every number, but for ports and tools, as large as it may be."""
    tables: dict[str, Any] = {}
    for path, kind in numbers():
        if "port" not in path and not path.startswith(("fix.validation.", "fix.agent.")):
            *names, leaf = path.split(".")
            table = tables
            for name in names:
                table = table.setdefault(name, {})
            table[leaf] = float(kind.rpartition("up to ")[2])
    return tables


async def call(door: FrontDoor, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await door.client.post(path, json=body, headers=KEY)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_every_number_has_a_largest_value() -> None:
    """So that none is too large for a store, a date or a timer."""
    found = list(numbers())
    assert len(found) > 60
    assert [path for path, kind in found if not re.search(r"up to \d+(\.\d+)?$", kind)] == []


async def test_the_largest_values_work(sql_url: str) -> None:
    """A delivery is worked on, and submissions go all their way."""
    keys = {"ops": {"key": KEY["x-api-key"], "scopes": SCOPES}}
    tables = largest()
    tables["github"]["webhook_secrets"] = [SECRET]
    submission = {"kind": "build", "params": {}}
    longest = tables["mesh"]["max_lease_seconds"]
    async with front_door(sql_url, working=True, api_keys=keys, **tables) as door:
        assert (await door.post(push())).status_code == 202
        assert [job.state for job in await door.finished()] == ["done"]
        for end, more in (("fail", {"error": "no"}), ("complete", {"result": {"ok": 1}})):
            await call(
                door, "/mesh/submit_request", submission | {"idempotency_key": f"key-0000-{end}"}
            )
            wanted = {"kinds": ["build"], "worker": "w", "lease_seconds": longest}
            job = await call(door, "/mesh/claim", wanted)
            mine = {"token": job["token"]}
            of_job = f"/mesh/jobs/{job['job_id']}"
            await call(door, f"{of_job}/heartbeat", mine | {"lease_seconds": longest})
            await call(door, f"{of_job}/{end}", mine | more)
        await call(door, "/api/reconciler/run", {})
        for path in ("/readyz", "/api/deliveries", "/api/jobs", "/api/prs/stale"):
            assert (await door.client.get(path, headers=KEY)).status_code == 200, path
