"""Pokes a program by a POST: the trigger of kind `http`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx2
import orjson

from towline.errors import Rejected, Unavailable
from towline.ports.forge import Done

_SECONDS: Final = 15.0


class HttpPoster:
    """Only hosts that are named may be called; the address is never part of a message."""

    def __init__(
        self, allowed_hosts: Collection[str], *, deadline_seconds: float = _SECONDS
    ) -> None:
        self._allowed = {host.lower() for host in allowed_hosts}
        self._deadline = deadline_seconds
        self._client = httpx2.AsyncClient(timeout=None, follow_redirects=False)

    async def post(self, url: str, payload: Mapping[str, object], key: str) -> Done:
        host = (urlsplit(url).hostname or "").lower()
        if host not in self._allowed:
            raise Rejected(f"triggers.allowed_hosts does not have {host!r}")
        headers = {"content-type": "application/json", "idempotency-key": key}
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._client.post(
                    url, content=orjson.dumps(payload), headers=headers
                )
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError) as trouble:
            # InvalidURL and ValueError: it redirects to what is no URL
            raise Unavailable(f"{host} did not answer: {type(trouble).__name__}") from None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Unavailable(f"{host} answered {answer.status_code}")
        if answer.status_code >= 300:
            return Done("blocked", f"{host} answered {answer.status_code}")
        return Done("done")

    async def aclose(self) -> None:
        await self._client.aclose()
