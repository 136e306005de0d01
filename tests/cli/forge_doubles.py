"""GitLab, Jenkins and Jira at one address, as far as a check-up asks, with their own words.

The bodies and statuses are those that the real ones send: GitLab says JSON, Jenkins refuses with
pages, Jira Data Center with either.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final, NamedTuple

import orjson

TOKEN: Final = "right-token-0123456789"
REPO: Final = "octo-org/app"
_PAGE: Final = (
    b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Sign in</body></html>"
)


class Said(NamedTuple):
    status: int
    body: bytes
    kind: bytes = b"application/json"


def said_as_json(status: int, told: object) -> Said:
    return Said(status, orjson.dumps(told))


def _page(status: int, body: bytes = _PAGE) -> Said:
    return Said(status, body, b"text/html;charset=utf-8")


def gitlab(path: str, headers: dict[str, str]) -> Said:
    if headers.get("private-token") != TOKEN:
        return said_as_json(401, {"message": "401 Unauthorized"})
    found: dict[str, object] = {
        "/user": {"id": 7, "username": "towline-bot", "state": "active"},
        "/personal_access_tokens/self": {"id": 1, "name": "towline", "scopes": ["api"]},
        "/projects/octo-org%2Fapp": {"id": 5, "path_with_namespace": REPO},
        "/projects/octo-org%2Fapp/members/all/7": {"id": 7, "access_level": 40},
    }
    return (
        said_as_json(200, found[path])
        if path in found
        else said_as_json(404, {"error": "404 Not Found"})
    )


def jenkins(path: str, headers: dict[str, str]) -> Said:
    if headers.get("authorization") != _basic("ci"):
        return _page(
            401, b"<html><body><h2>HTTP ERROR 401 Invalid password/token</h2></body></html>"
        )
    if path == "/queue/api/json":
        return said_as_json(200, {"_class": "hudson.model.Queue", "items": []})
    return _page(404)


def jira(path: str, headers: dict[str, str]) -> Said:
    if path == "/rest/api/2/serverInfo":
        return said_as_json(200, {"version": "10.3.0", "deploymentType": "Server"})
    if headers.get("authorization") != f"Bearer {TOKEN}":
        return said_as_json(
            401, {"message": "Client must be authenticated to access this resource."}
        )
    if path == "/rest/api/2/myself":
        return said_as_json(200, {"name": "towline-bot", "active": True})
    return _page(404)


def _basic(user: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{TOKEN}'.encode()).decode()}"


def lacking_scope(path: str, headers: dict[str, str]) -> Said:
    """The token is known, and opens nothing."""
    if path.startswith("/gitlab"):
        told = {"error": "insufficient_scope", "error_description": "The request requires more."}
        return said_as_json(403, told | {"scope": "api read_api read_user"})
    if path.startswith("/jenkins"):
        return _page(403, b"<html><body>ci is missing the Overall/Read permission</body></html>")
    return _page(403, b"<html><body>Forbidden (403) CAPTCHA_CHALLENGE</body></html>")


def pages(path: str, headers: dict[str, str]) -> Said:
    """A sign-in in front of everything, which has a page for each question."""
    return _page(200)


def nothing(path: str, headers: dict[str, str]) -> Said:
    """A web server that is none of them."""
    return _page(404, b"<html><head><title>404 Not Found</title></head></html>")


def broken(path: str, headers: dict[str, str]) -> Said:
    """What a proxy says while the server behind it starts."""
    return _page(502, b"<html><body><h1>502 Bad Gateway</h1></body></html>")


def all_three(path: str, headers: dict[str, str]) -> Said:
    for prefix, answering in (
        ("/gitlab/api/v4", gitlab),
        ("/jenkins", jenkins),
        ("/jira", jira),
    ):
        if path.startswith(f"{prefix}/"):
            return answering(path.removeprefix(prefix), headers)
    return nothing(path, headers)


class Doubles:
    """An ASGI app that says what it is told to; `forever` lets every question wait."""

    def __init__(
        self, say: Callable[[str, dict[str, str]], Said], *, forever: bool = False
    ) -> None:
        self._say = say
        self._forever = forever

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if self._forever:
            await _hung_up(receive)
            return
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        said = self._say(scope["raw_path"].decode(), headers)
        date = formatdate(usegmt=True).encode()
        await send(
            {
                "type": "http.response.start",
                "status": said.status,
                "headers": [(b"content-type", said.kind), (b"date", date)],
            }
        )
        await send({"type": "http.response.body", "body": said.body})


async def _hung_up(receive: Any) -> None:
    async with asyncio.timeout(100):
        while (await receive())["type"] != "http.disconnect":
            pass


def settings_for(url: str, token: str = TOKEN) -> dict[str, str]:
    return {
        "TOWLINE_GITLAB__API_URL": f"{url}/gitlab/api/v4",
        "TOWLINE_GITLAB__TOKEN": token,
        "TOWLINE_TOW__REPOS": REPO,
        "TOWLINE_JENKINS__URL": f"{url}/jenkins",
        "TOWLINE_JENKINS__USER": "ci",
        "TOWLINE_JENKINS__TOKEN": token,
        "TOWLINE_JIRA__URL": f"{url}/jira",
        "TOWLINE_JIRA__TOKEN": token,
    }
