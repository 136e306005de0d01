"""A server on loopback that answers with whatever bytes it is given, and the clients that ask it.

The loop, the server and the clients are made once a process: a client takes a fiftieth of a second
to make. Their clock leaps between two inputs, so that what one made a client wait for is over.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.clocks import ManualClock
from tests.fuzz.target import SEPARATOR, TOKEN
from towline.forges.github.auth import GitHubApp
from towline.forges.github.delivery_log import GitHubHookLog
from towline.forges.github.forge import GitHubForge
from towline.forges.gitlab.forge import GitLabForge
from towline.integrations.http_trigger import HttpPoster
from towline.integrations.jenkins.ci import JenkinsCi
from towline.integrations.jira.client import Jira

_LEAP_SECONDS: Final = 100_000.0
_DEADLINE: Final = 5.0
_MOST_ANSWERS: Final = 12
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
    b"content-type: application/json\r\nconnection: close\r\n\r\n"
)
"""For answers that are a body alone."""


class Forge:
    """What answers: the parts of an input in turn, and then nothing at all."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.answers: list[bytes] = []
        self.asked: list[bytes] = []
        """The paths of the requests since the last input."""
        self._server = self.loop.run_until_complete(
            asyncio.start_server(self._answer, "127.0.0.1", 0)
        )
        port = self._server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        given: dict[str, Any] = {"token": TOKEN, "deadline_seconds": _DEADLINE}
        self.github = GitHubForge(url, self.clock, **given, login="octocat", sleep=self._no_wait)
        self.app = GitHubForge(
            url, self.clock, app=_an_app(), deadline_seconds=_DEADLINE, sleep=self._no_wait
        )
        self.hook_log = GitHubHookLog(url, self.clock, **given)
        self.gitlab = GitLabForge(f"{url}/api/v4", self.clock, **given)
        self.jira = Jira(url, self.clock, **given)
        self.jenkins = JenkinsCi(url, self.clock, user="octocat", **given)
        self.url = url
        self.poster = HttpPoster(["127.0.0.1"], deadline_seconds=_DEADLINE)

    async def _no_wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.split(b" ", 2)[1])
            if length := _LENGTH.search(head):
                await reader.readexactly(int(length[1]))
            answer = self.answers.pop(0) if self.answers else b""
            if answer:
                writer.write(answer if answer.startswith(b"HTTP/") else _HEAD + answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def play(self, data: bytes, asking: Callable[[Forge], Coroutine[Any, Any, None]]) -> None:
        """Ask with these answers at hand."""
        self.clock.advance(_LEAP_SECONDS)
        self.answers, self.asked = data.split(SEPARATOR)[:_MOST_ANSWERS], []
        self.loop.run_until_complete(asking(self))

    def close(self) -> None:
        closing: list[Awaitable[Any]] = [
            self.github.aclose(), self.app.aclose(), self.hook_log._rest.aclose(),
            self.gitlab.aclose(), self.jira.aclose(), self.jenkins.aclose(), self.poster.aclose(),
        ]  # fmt: skip
        self.loop.run_until_complete(_all(closing))
        self._server.close()
        self.loop.run_until_complete(self._server.wait_closed())
        self.loop.close()


class _SignedOnce(GitHubApp):
    """Signing takes a tenth of a second, and is not what is tried here."""

    def token(self, now: float) -> str:
        return self._token or super().token(now)


@cache
def _an_app() -> GitHubApp:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with tempfile.TemporaryDirectory(prefix="towline-fuzz-") as folder:
        file = Path(folder, "app.pem")
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return _SignedOnce("42", file)


async def _all(closing: list[Awaitable[Any]]) -> None:
    for one in closing:
        await one


_forges: list[Forge] = []


def forge() -> Forge:
    """The one of this process."""
    if not _forges:
        _forges.append(Forge())
        atexit.register(close)
    return _forges[0]


def close() -> None:
    while _forges:
        _forges.pop().close()
