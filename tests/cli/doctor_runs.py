"""`towline doctor` as a person runs it, and servers for it to look at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests import fast_start

SECONDS = 100


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def findings(self, check: str) -> list[dict[str, str]]:
        return [one for one in self.data()["findings"] if one["check"] == check]

    def verdicts(self, check: str) -> list[str]:
        return [one["verdict"] for one in self.findings(check)]


async def towline(
    folder: Path, *arguments: str, under: Sequence[str] = (), **environment: str
) -> Ran:
    """Beside the test's own loop, so that its servers go on answering; `under` starts it."""
    if not under:
        done = await asyncio.to_thread(
            fast_start.towline, *arguments, folder=folder, environment=environment
        )
        return Ran(done.returncode, done.stdout, done.stderr)
    process = await asyncio.create_subprocess_exec(
        *(*under, sys.executable, "-m", "towline", *arguments),
        cwd=folder,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate()
    return Ran(process.returncode or 0, out.decode(), err.decode())


async def examined(
    folder: Path, *arguments: str, under: Sequence[str] = (), **environment: str
) -> Ran:
    return await towline(folder, "doctor", "--json", *arguments, under=under, **environment)


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Accepts every connection, and never says a word."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        held: list[socket.socket] = []

        def accept() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    held.append(listening.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join(SECONDS)
            for one in held:
                one.close()
