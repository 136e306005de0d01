"""Tools of a fix run that stop where a test wants them to, and a forge that does so, too.

The fixer, the scan and the validation are small programs that say at a gate which stage they are
of, and go on when they are let through. Nothing of Towline knows of it: they are commands of the
settings, with a network to reach the gate by.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.fix_over_http import SOURCE
from tests.e2e.tow_over_http import OURS
from towline_sim.github.faults import HttpFault

_KNOCK = """
import socket
def knock(stage, repo):
    with socket.create_connection(("127.0.0.1", {port}), timeout=300) as gate:
        gate.sendall(f"{{stage}} {{repo}}\\n".encode())
        assert gate.recv(1), "the gate is closed"
"""
_AGENT = f"""
import json, pathlib, sys
knock("PATCH", json.load(sys.stdin)["errand"]["repo"])
pathlib.Path({SOURCE!r}).write_text("print('hello')\\n")
"""
MENDED = "print('hello')\n"


@dataclass
class Gate:
    """`held` are the pairs of stage and repository that are not let through."""

    port: int = 0
    held: set[tuple[str, str]] = field(default_factory=set)
    knocks: Counter[tuple[str, str]] = field(default_factory=Counter)
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    def let_through(self, *pairs: tuple[str, str]) -> None:
        self.held.difference_update(pairs)
        self._opened.set()
        self._opened = asyncio.Event()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stage, repo = (await reader.readline()).decode().split()
        self.knocks[stage, repo] += 1
        while (stage, repo) in self.held:
            await self._opened.wait()
        with contextlib.suppress(ConnectionError):
            writer.write(b"!")
            await writer.drain()
        writer.close()

    def settings(self, folder: Path, *repos: str) -> dict[str, Any]:
        """Of a service that fixes these with tools that come to this gate."""
        agent = self._tool("agent", _AGENT)
        fix = {
            "repos": list(repos),
            "fixers": ["command"],
            "agent": agent,
            "bandit": False,
            "folder": str(folder / "work"),
        }
        own = {repo: {"fix": self._checks(repo)} for repo in repos}
        return {"tow": {"own_logins": [OURS]}, "fix": fix, "repo": own}

    def _checks(self, repo: str) -> dict[str, Any]:
        scan = self._tool("scan", f"knock('SCANS', {repo!r})")
        return {
            "scans": [scan],
            "validation": self._tool("validation", f"knock('VALIDATION', {repo!r})"),
        }

    def _tool(self, name: str, code: str) -> dict[str, Any]:
        argv = [sys.executable, "-I", "-S", "-c", _KNOCK.format(port=self.port) + code]
        return {"argv": argv, "name": name, "seconds": 300, "network": True}


@contextlib.asynccontextmanager
async def a_gate() -> AsyncIterator[Gate]:
    gate = Gate()
    server = await asyncio.start_server(gate._let_in, "127.0.0.1")
    gate.port = server.sockets[0].getsockname()[1]
    async with server:
        yield gate
        gate.let_through(*gate.held)


@dataclass(slots=True, kw_only=True)
class Hold(HttpFault):
    """Keeps the requests that come once it is `due`, until it is lifted."""

    due: Callable[[], bool] = bool
    struck: bool = False
    lifted: bool = False

    def strikes(self, method: str, path: str) -> bool:
        at_this = path.startswith(self.path) and self.method in (None, method)
        if self.lifted or not at_this or not self.due():
            return False
        self.struck = True
        return True


def always() -> bool:
    return True
