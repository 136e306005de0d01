"""The strip on the demo's pages: the link that signs in, and levers that work without a script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.dashboard.dashboard_plane import (
    DashboardPlane,
    Visitor,
    dashboard_on,
    token_in,
    visiting,
)
from towline.cli.serve import bound
from towline_sim.demo.harness import Demo, demo_in

SLOW = 1.0
"""So slow that nothing happens by itself while a test looks."""


@asynccontextmanager
async def demo_at(folder: Path) -> AsyncIterator[tuple[Demo, Visitor]]:
    with bound("127.0.0.1", 0) as listening:
        async with (
            demo_in(folder, listening, SLOW) as demo,
            httpx2.AsyncClient(base_url=demo.url, timeout=30) as client,
        ):
            yield demo, Visitor(client)


async def test_the_link_signs_in_and_the_levers_move(tmp_path: Path) -> None:
    """Each lever is a button of a plain form, and shows the position it was put in."""
    async with demo_at(tmp_path) as (demo, visitor):
        answer = await visitor.client.get(demo.link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/")
        page = await visitor.get("/ui/health")
        assert 'id="demo-strip"' in page
        for name in ("jenkins", "github", "webhooks", "approver", "pause", "faster"):
            assert _is_on(page, name) is False, name
            sent = await pulled(visitor, name, "/ui/health")
            assert (sent.status_code, sent.headers["location"]) == (303, "/ui/health?note=demo")
            page = await visitor.get("/ui/health")
            assert _is_on(page, name) is True, name
            await visitor.send("/ui/", "/ui/demo", lever=name)
            page = await visitor.get("/ui/health")
            assert _is_on(page, name) is False, name
        for name in ("more", "conflict"):
            assert (await visitor.send("/ui/", "/ui/demo", lever=name)).status_code == 303
        assert "DEMO_LEVER_PULLED" in await visitor.get("/ui/audit")


async def pulled(visitor: Visitor, lever: str, page: str) -> httpx2.Response:
    token = token_in(await visitor.client.get("/ui/"))
    form = {"csrf": token, "lever": lever, "page": page}
    return await visitor.client.post("/ui/demo", data=form)


def _is_on(page: str, name: str) -> bool:
    button = page.partition(f'id="lever-{name}"')[2].partition(">")[0]
    assert "aria-pressed" in button, name
    return 'aria-pressed="true"' in button


async def test_what_is_refused(tmp_path: Path) -> None:
    """A wrong link, an unknown lever, a form from elsewhere, and a page that is not ours."""
    async with demo_at(tmp_path) as (demo, visitor):
        assert (await visitor.client.get("/ui/demo/enter/guess")).status_code == 404
        assert (await visitor.client.post("/ui/demo", data={"lever": "more"})).status_code == 303
        await visitor.client.get(demo.link)
        unknown = await visitor.send("/ui/", "/ui/demo", lever="nuke")
        assert unknown.status_code == 422
        assert "jenkins, github, webhooks" in unknown.text
        forged = await visitor.client.post("/ui/demo", data={"lever": "github"})
        assert forged.status_code == 403
        for page in ("https://evil.example/", "//evil.example", "/ui//evil.example", "/ui/\\x"):
            sent = await pulled(visitor, "faster", page)
            assert sent.headers["location"] == "/ui/?note=demo", page


@pytest.fixture
async def plane(sqlite_url: str) -> AsyncIterator[DashboardPlane]:
    async with dashboard_on(sqlite_url) as made:
        yield made


async def test_a_service_has_no_strip(plane: DashboardPlane) -> None:
    """Outside of the demo there is neither the strip nor its routes."""
    from tests.app.control_plane import KEY

    async with visiting(plane, KEY) as visitor:
        assert "demo-strip" not in await visitor.get("/ui/")
        await visitor.get("/ui/demo/enter/x", status=404)
        sent = await visitor.send("/ui/", "/ui/demo", lever="more")
        assert sent.status_code == 405
