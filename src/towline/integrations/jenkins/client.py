"""Jenkins' HTTP API: objects, forms, the end of a log, and crumbs where they are asked for.

An API token needs no crumb. A controller that asks for one all the same, as some do behind a
proxy, gets it in a second try: the first one was refused, so that nothing is done twice.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from towline.forges import payload
from towline.forges.client import Answer, ApiClient, Errors, Limits, end_of
from towline.forges.payload import Object
from towline.integrations.ci import CiRefused, CiUnavailable
from towline_once.errors import Rejected
from towline_once.ports import Clock

_ERRORS: Final = Errors(CiUnavailable, CiUnavailable, CiRefused)
_MAX_PAUSE: Final = 600.0
_FORM: Final = {"content-type": "application/x-www-form-urlencoded"}


class JenkinsHttp:
    def __init__(
        self, url: str, clock: Clock, user: str, token: str, deadline_seconds: float
    ) -> None:
        self._crumb: dict[str, str] = {}
        self._client = ApiClient(
            "Jenkins",
            url,
            clock,
            headers={"authorization": _basic(user, token)},
            errors=_ERRORS,
            limits=Limits(clock, max_pause=_MAX_PAUSE),
            deadline_seconds=deadline_seconds,
            redirects=False,  # it redirects to its sign-in, which is no answer
        )

    def url(self, path: str) -> str:
        """`path` is percent-encoded already."""
        return str(self._client.url(path))

    async def read(self, path: str, about: str, **query: str) -> Object:
        return (await self._client.send("GET", path, about=about, query=query)).object()

    async def find(self, path: str, about: str, **query: str) -> Object | None:
        """None if it is not there."""
        answer = await self._client.send("GET", path, about=about, query=query, also=(404,))
        return None if answer.status == 404 else answer.object()

    async def look(self, path: str, about: str, **query: str) -> tuple[int, bytes]:
        """What is answered, also where that is a refusal; a breakdown is raised."""
        also = (*range(300, 408), *range(409, 429), *range(430, 500))
        answer = await self._client.send("GET", path, about=about, query=query, also=also)
        return answer.status, answer.body

    async def post(self, path: str, about: str, fields: Mapping[str, str]) -> str:
        """Where the answer points to; empty if nowhere."""
        content = urlencode(fields).encode()
        answer = await self._post(path, about, content)
        if answer.status == 403 and _is_about_crumbs(answer):
            await self._fetch_crumb()
            answer = await self._post(path, about, content)
        if answer.status == 403:
            reason = " for want of a crumb" if _is_about_crumbs(answer) else ""
            raise CiRefused(f"Jenkins refuses what was asked about {about}{reason} (403)")
        return str(answer.headers.get("location", ""))

    async def _post(self, path: str, about: str, content: bytes) -> Answer:
        headers = {**_FORM, **self._crumb}
        return await self._client.send(
            "POST", path, about=about, headers=headers, content=content, also=(403,)
        )

    async def _fetch_crumb(self) -> None:
        """A crumb belongs to a session, whose cookie the client keeps."""
        issued = await self.read("/crumbIssuer/api/json", "crumb")
        field, crumb = payload.text(issued, "crumbRequestField"), payload.text(issued, "crumb")
        if not _is_header(field, crumb):
            raise CiUnavailable("Jenkins' crumb is not what its API sends")
        self._crumb = {str(field): str(crumb)}

    async def tail(self, path: str, max_bytes: int) -> bytes:
        """The first answer tells how long the text is; only its end is then sent."""
        if max_bytes <= 0:
            return b""
        client = self._client
        call = client.call("GET", path, about="log", also=(404,))
        async with client.exchange(call) as response:
            if client.judge(call, response, b"").status == 404:
                return b""
            size = response.headers.get("x-text-size", "")[:18]
            start = int(size) - max_bytes if size.isdecimal() else 0
            if start <= 0:
                return await end_of(response, max_bytes)
        call = client.call("GET", path, about="log", query={"start": str(start)})
        async with client.exchange(call) as response:
            client.judge(call, response, b"")
            return await end_of(response, max_bytes)

    async def aclose(self) -> None:
        await self._client.aclose()


def _is_about_crumbs(answer: Answer) -> bool:
    return b"crumb" in answer.body.lower()


def _basic(user: str, token: str) -> str:
    if not user or not token or ":" in user or not f"{user}{token}".isprintable():
        raise Rejected("Jenkins needs the name of a user, without a colon, and an API token")
    return f"Basic {base64.b64encode(f'{user}:{token}'.encode()).decode()}"


def _is_header(name: str | None, value: str | None) -> bool:
    return bool(name and value) and f"{name}{value}".isascii() and f"{name}{value}".isprintable()
