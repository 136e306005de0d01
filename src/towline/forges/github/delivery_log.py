"""The log that GitHub keeps of the webhooks it sent, of a repository's hook or of an App's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import httpx2

from towline.forges.client import Answer
from towline.forges.delivery_log import Entry, ForgeUnreadable, Hook, LogPage, Recorded
from towline.forges.github.auth import GitHubApp
from towline.forges.github.client import bearer, date_us, github_client, links_of
from towline_once.errors import Rejected
from towline_once.ports import Clock

_PER_PAGE: Final = "100"


class GitHubHookLog:
    """`token` opens the hooks of repositories, `app` that of the App itself."""

    def __init__(
        self,
        api_url: str,
        clock: Clock,
        *,
        token: str | None = None,
        app: GitHubApp | None = None,
        deadline_seconds: float = 15.0,
    ) -> None:
        self._rest = github_client(api_url, clock, deadline_seconds=deadline_seconds)
        self._token = None if token is None else bearer(token)
        self._app = app

    async def page(self, hook: Hook, cursor: str | None = None) -> LogPage:
        """A page costs nothing of the rate limit while it stays as it was."""
        query = {"per_page": _PER_PAGE} | ({"cursor": cursor} if cursor else {})
        answer = await self._rest.send(
            "GET",
            _path(hook),
            about=f"hook {hook.name}",
            query=query,
            headers=self._authorization(hook),
        )
        if date_us(answer.headers.get("date")) is None:
            raise ForgeUnreadable("GitHub's answer has no Date to go by")
        return LogPage(_entries(answer), self._next(answer), answer.now_us)

    async def read(self, hook: Hook, entry_id: int) -> Recorded:
        answer = await self._rest.send(
            "GET",
            f"{_path(hook)}/{entry_id}",
            about=f"delivery {entry_id} of hook {hook.name}",
            headers=self._authorization(hook),
        )
        return _recorded(_json_of(answer))

    def _authorization(self, hook: Hook) -> dict[str, str]:
        if hook.repo is not None:
            if self._token is None:
                raise Rejected(f"reading the log of hook {hook.name} needs a GitHub token")
            return {"authorization": self._token}
        if self._app is None:
            raise Rejected(f"reading the log of {hook.name} needs the App's id and key")
        signed = self._app.token(self._rest.now_us() / 1e6)
        return {"authorization": bearer(signed)}

    def _next(self, answer: Answer) -> str | None:
        """The cursor alone is taken from the link, and only from one to the same host."""
        url = links_of(answer.headers).get("next", {}).get("url")
        if url is None:
            return None
        cursor: str | None = None
        with contextlib.suppress(httpx2.InvalidURL):
            cursor = self._rest.same_host(httpx2.URL(url)).params.get("cursor")
        if not cursor:
            raise ForgeUnreadable("GitHub's link to the next page has no cursor")
        return cursor

    async def aclose(self) -> None:
        await self._rest.aclose()


def _path(hook: Hook) -> str:
    if hook.repo is None:
        return "/app/hook/deliveries"
    return f"/repos/{hook.repo}/hooks/{hook.id}/deliveries"


def _json_of(answer: Answer) -> Any:
    """By the standard library, which keeps every number and character as it is."""
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ForgeUnreadable("GitHub's answer is not JSON") from None


def _entries(answer: Answer) -> tuple[Entry, ...]:
    listed = _json_of(answer)
    if not isinstance(listed, list):
        raise ForgeUnreadable("GitHub's answer is not a list of deliveries")
    try:
        return tuple(map(_entry, listed))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ForgeUnreadable("an entry of GitHub's delivery log lacks what it must have") from None


def _entry(item: Mapping[str, Any]) -> Entry:
    guid, event = item["guid"], item["event"]
    if not isinstance(guid, str) or not isinstance(event, str) or not guid or not event:
        raise ValueError
    delivered = datetime.fromisoformat(item["delivered_at"])
    if delivered.tzinfo is None:
        raise ValueError
    return Entry(
        id=int(item["id"]),
        guid=guid,
        delivered_us=int(delivered.timestamp() * 1_000_000),
        redelivery=bool(item["redelivery"]),
        status_code=int(item["status_code"] or 0),
        event=event,
    )


def _recorded(found: Any) -> Recorded:
    try:
        request = found["request"]
        guid, headers, payload = found["guid"], request["headers"] or {}, request["payload"]
        if not isinstance(payload, dict):
            raise TypeError
        named = {str(name).lower(): str(value) for name, value in headers.items()}
    except (KeyError, TypeError, AttributeError):
        raise ForgeUnreadable("the delivery in GitHub's log has no payload") from None
    return Recorded(str(guid), named, payload)
