"""GitLab's REST API, version 4, by objects and lists of objects."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from towline.forges.client import Answer, ApiClient, Limits, checked_token
from towline.forges.delivery_log import ForgeUnavailable, ForgeUnreadable
from towline.forges.payload import Object
from towline.forges.snapshot import PullRef
from towline_once.canonical_json import JsonValue
from towline_once.ports import Clock

PER_PAGE: Final = 100
_MOST_PAGES: Final = 20
_MAX_CONCURRENT: Final = 8
_REQUESTS_LONG: Final = 4

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="HasApi")


class HasApi(Protocol):
    _api: GitLabApi


def bounded(
    call: Callable[Concatenate[H, P], Awaitable[T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Each request has its deadline; a call, which may need several, ends by four of them."""

    @functools.wraps(call)
    async def ending(self: H, /, *args: P.args, **named: P.kwargs) -> T:
        seconds = self._api.http.deadline_seconds * _REQUESTS_LONG
        try:
            async with asyncio.timeout(seconds):
                return await call(self, *args, **named)
        except TimeoutError:
            raise ForgeUnavailable(f"GitLab did not come to an end in {seconds:g} s") from None

    return ending


class GitLabApi:
    """`api_url` ends in `/api/v4`."""

    def __init__(self, api_url: str, clock: Clock, token: str, deadline_seconds: float) -> None:
        self.token = token
        self.http = ApiClient(
            "GitLab",
            api_url,
            clock,
            headers={"private-token": checked_token(token, "GitLab"), "accept": "application/json"},
            limits=Limits(clock, max_concurrent=_MAX_CONCURRENT),
            deadline_seconds=deadline_seconds,
        )

    async def get(self, path: str, about: str, **query: str) -> Object:
        return (await self.http.send("GET", path, about=about, query=query)).object()

    async def find(self, path: str, about: str, **query: str) -> Object | None:
        """None if it is not there."""
        answer = await self.http.send("GET", path, about=about, query=query, also=(404,))
        return None if answer.status == 404 else answer.object()

    async def page(
        self, path: str, about: str, query: Mapping[str, Any], also: Collection[int] = ()
    ) -> tuple[list[Object], int | None]:
        """A page of a list, and the number of the next; a status of `also` is an empty one."""
        asked = {"per_page": str(PER_PAGE), **query}
        answer = await self.http.send("GET", path, about=about, query=asked, also=also)
        if answer.status in also:
            return [], None
        found = answer.json()
        if not isinstance(found, list):
            raise ForgeUnreadable("GitLab's answer is not a list")
        following = answer.headers.get("x-next-page", "")
        items = [item for item in found if isinstance(item, dict)]
        return items, int(following[:9]) if following.isdecimal() else None

    async def all(
        self, path: str, about: str, *, required: bool = False, **query: str
    ) -> list[Object]:
        """A whole list, as far as twenty pages go; empty if what is not `required` is missing."""
        also = () if required else (404,)
        found: list[Object] = []
        number: int | None = 1
        while number is not None and number <= _MOST_PAGES:
            items, number = await self.page(path, about, {**query, "page": str(number)}, also)
            found += items
        return found

    async def write(
        self,
        method: str,
        path: str,
        about: str,
        body: Mapping[str, JsonValue],
        also: Collection[int] = (),
    ) -> Answer:
        return await self.http.send(method, path, about=about, body=dict(body), also=also)


def project_path(repo: str) -> str:
    """Groups may be nested: the whole name is one segment. A number names a project as well."""
    return f"/projects/{quote(repo, safe='')}"


def request_path(ref: PullRef) -> str:
    return f"{project_path(ref.repo)}/merge_requests/{ref.number}"
