"""Pokes a program by a POST: the trigger of kind `http`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import httpx2

from towline.forges.base import Done
from towline.forges.client import ApiClient, Errors
from towline_once.clock import SystemClock
from towline_once.errors import Rejected, Unavailable
from towline_once.ports import Clock

_SECONDS: Final = 15.0
_ERRORS: Final = Errors(Unavailable, Unavailable, Rejected)
_REFUSALS: Final = (*range(300, 429), *range(430, 500))


class HttpPoster:
    """Only hosts that are named may be called; the address is never part of a message."""

    def __init__(
        self,
        allowed_hosts: Collection[str],
        clock: Clock | None = None,
        *,
        deadline_seconds: float = _SECONDS,
    ) -> None:
        self._allowed = {host.lower() for host in allowed_hosts}
        self._client = ApiClient(
            "the HTTP trigger",
            None,
            clock or SystemClock(),
            errors=_ERRORS,
            deadline_seconds=deadline_seconds,
            redirects=False,
            metric="http_trigger",
        )

    async def post(self, url: str, payload: Mapping[str, object], key: str) -> Done:
        try:
            address = httpx2.URL(url)
            host = address.host.lower()
        except (httpx2.InvalidURL, ValueError):
            raise Rejected("the URL of an HTTP trigger is none") from None
        if host not in self._allowed:
            raise Rejected(f"triggers.allowed_hosts does not have {host!r}")
        answer = await self._client.send(
            "POST",
            address,
            about=host,
            headers={"idempotency-key": key},
            body=payload,
            also=_REFUSALS,
        )
        if answer.status >= 300:
            return Done("blocked", f"{host} answered {answer.status}")
        return Done("done")

    async def aclose(self) -> None:
        await self._client.aclose()
