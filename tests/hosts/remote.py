"""A remote worker on a machine of its own, over HTTP by way of the balancer."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.hosts.fleet import API_KEY, LEASE_SECONDS
from tests.hosts.network import Machine

_SECONDS = 10.0


class RemoteWorker:
    def __init__(self, machine: Machine, door: str) -> None:
        self._machine = machine
        self._door = door

    async def _post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        def post() -> httpx2.Response:
            headers = {"x-api-key": API_KEY}
            url = f"{self._door}{path}"
            return httpx2.post(url, json=body, headers=headers, timeout=_SECONDS)

        return await asyncio.to_thread(self._machine.inside, post)

    async def submit(self, key: str) -> str:
        body = {"kind": "build", "params": {}, "idempotency_key": key}
        answer = await self._post("/mesh/submit_request", body)
        answer.raise_for_status()
        request_id: str = answer.json()["request_id"]
        return request_id

    async def claim(self) -> dict[str, Any] | None:
        """Work, if there is any."""
        worker = f"remote on {self._machine.name}"
        wish = {"kinds": ["build"], "worker": worker, "lease_seconds": LEASE_SECONDS}
        answer = await self._post("/mesh/claim", wish)
        answer.raise_for_status()
        job: dict[str, Any] | None = answer.json() if answer.status_code == 200 else None
        return job

    async def claim_at_last(self) -> dict[str, Any]:
        """Ask until there is some; whoever asks a door that is lost asks again."""
        while True:
            try:
                job = await self.claim()
            except httpx2.HTTPError:
                job = None
            if job is not None:
                return job
            await asyncio.sleep(0.2)

    async def complete(self, job: dict[str, Any], result: str) -> int:
        """The status of the answer."""
        body = {"token": job["token"], "result": {"by": result}}
        return (await self._post(f"/mesh/jobs/{job['job_id']}/complete", body)).status_code
