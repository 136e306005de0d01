"""The dashboard on a real store behind real HTTP, and a visitor who signs in as people do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.app.control_plane import SECRET, plane_on
from tests.http.asgi_client import serving
from tests.pulls.tow_plane import KEYS, TowPlane
from towline.dashboard.collaborators import Desk
from towline.dashboard.queries import SqlInsights
from towline.dashboard.session import Sessions
from towline.dashboard.session_store import SqlSessions
from towline.fix.http import Runs
from towline.fix.store import RunStore
from towline_once.db.statement import Statement

TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


class DashboardPlane(TowPlane):
    """The tow's plane with the dashboard in front."""

    audit_file: Path | None = None
    troubles: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.insights = SqlInsights(self.database)
        self.runs = RunStore(self.database)
        rows = SqlSessions(self.database)
        self.sessions = Sessions(self.keyring, rows, self.clock, lambda: SECRET)

    def rooms(self) -> dict[str, Any]:
        forges: Any = {"github": self.rig.forge}
        desk = Desk(
            self.insights, self.sessions, None, self.audit_file, forges,
            troubles=lambda: self.troubles,
        )  # fmt: skip
        return {**super().rooms(), "runs": Runs(self.runs, 3), "desk": desk}

    async def fill(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Many at once, as a migration would bring them."""
        for start in range(0, len(rows), 500):
            await self.database.run(_MANY, rows[start : start + 500])

    async def spoil(self, repo: str, number: int) -> None:
        """A record that no version of Towline wrote."""
        await self.tow(repo, number)
        await self.database.run(_SPOIL, [(repo, number)])


_MANY = Statement(
    "many",
    {
        "repo": "text", "number": "bigint", "forge": "text", "title": "text", "state": "text",
        "since_us": "bigint", "created_us": "bigint",
    },
    """
    INSERT INTO towline_prs (repo, number, forge, title, state, since_us, created_us, updated_us,
      counts, lifetime, path, facts, version, last_event)
    SELECT b.repo, b.number, b.forge, b.title, b.state, b.since_us, b.created_us, b.created_us,
      '{{}}', '{{}}', '[]', '{{}}', 1, 0 FROM b WHERE true RETURNING number
    """,
)  # fmt: skip
_SPOIL = Statement(
    "spoil",
    {"repo": "text", "number": "bigint"},
    """
    UPDATE towline_prs SET facts = '{{', counts = '{{' FROM b
    WHERE towline_prs.repo = b.repo AND towline_prs.number = b.number RETURNING towline_prs.number
    """,
)


@asynccontextmanager
async def dashboard_on(url: str) -> AsyncIterator[DashboardPlane]:
    async with plane_on(url) as plane:
        yield DashboardPlane(plane.database, plane.clock, KEYS)


class Visitor:
    """Somebody with a browser that has no script."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def sign_in(self, key: str, onward: str = "") -> httpx2.Response:
        token = token_in(await self.client.get("/ui/sign-in"))
        form = {"csrf": token, "key": key, "next": onward}
        return await self.client.post("/ui/sign-in", data=form)

    async def get(self, path: str, status: int = 200) -> str:
        answer = await self.client.get(path)
        assert answer.status_code == status, (answer.status_code, answer.text[-2000:])
        return answer.text

    async def send(self, page: str, path: str, **fields: str) -> httpx2.Response:
        """A form of this page."""
        token = token_in(await self.client.get(page))
        return await self.client.post(path, data={"csrf": token, **fields})


def token_in(answer: httpx2.Response) -> str:
    found = TOKEN.search(answer.text)
    assert found is not None, answer.text[:500]
    return found[1]


@asynccontextmanager
async def visiting(plane: DashboardPlane, key: str | None = None) -> AsyncIterator[Visitor]:
    async with serving(plane.app()) as client:
        visitor = Visitor(client)
        if key is not None:
            assert (await visitor.sign_in(key)).status_code == 303
        yield visitor
