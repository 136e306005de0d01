"""What is done from the dashboard goes the API's way: the same effects, refusals and audit."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.app.control_plane import KEY
from tests.dashboard.dashboard_plane import DashboardPlane, Visitor, dashboard_on, visiting
from tests.pulls.tow_plane import COMMANDER
from towline.dashboard.live import Live
from towline.fix.model import Errand
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.reconciler.access import Tow
from towline.remediation.breakers import GLOBAL
from towline_once.asgi.messages import Problem

PULL = "/ui/pr/octo-org/app/7"


@pytest.fixture
async def plane(sqlite_url: str) -> AsyncIterator[DashboardPlane]:
    """A store in a file."""
    async with dashboard_on(sqlite_url) as opened:
        yield opened


@pytest.fixture
async def visitor(plane: DashboardPlane) -> AsyncIterator[Visitor]:
    """Somebody who may do everything."""
    async with visiting(plane, KEY) as opened:
        yield opened


async def test_a_command(plane: DashboardPlane) -> None:
    """It is queued for whoever's key it was, and the page says so."""
    await plane.tow("octo-org/app", 7, state="CHECKS_FAILED")
    async with visiting(plane, COMMANDER) as deputy:
        answer = await deputy.send(PULL, f"{PULL}/command", command="/rebuild")
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PULL}?note=ordered")
        assert "The command is queued" in await deputy.get(f"{PULL}?note=ordered")
        assert 'class="note"' not in await deputy.get(f"{PULL}?note=<b>")
    [job] = await plane.jobs.listing(None, "", 10)
    assert json.loads(job.params or "")["requested_by"] == "deputy"
    ordered = plane.audited[-1]
    assert (ordered["event"], ordered["by"], ordered["command"]) == (
        "COMMAND_ORDERED", "deputy", "/rebuild",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "status", "code"),
    [("/merge", 409, "not_now"), ("/dance", 422, "unknown_command"), ("", 422, "unknown_command")],
)
async def test_a_command_that_is_refused(
    plane: DashboardPlane, visitor: Visitor, command: str, status: int, code: str
) -> None:
    """Also when its button is got around: with the reason, and a way back."""
    await plane.tow("octo-org/app", 7, state="CHECKS_FAILED")
    answer = await visitor.send(PULL, f"{PULL}/command", command=command)
    assert answer.status_code == status
    assert f"<code>{code}</code>" in answer.text
    assert f'href="{PULL}"' in answer.text
    assert not await plane.jobs.listing(None, "", 10)


async def test_a_breaker_is_reset(plane: DashboardPlane, visitor: Visitor) -> None:
    """By name; one that is not there is refused."""
    listed = plane.board.open(GLOBAL)
    for _ in range(6):
        permit = await listed.admit()
        if permit is not None:
            await permit.failed()
    assert (await plane.another_board().views())[0].state == "open"
    answer = await visitor.send("/ui/health", "/ui/health/reset", name=GLOBAL)
    assert answer.headers["location"] == "/ui/health?note=reset"
    assert (await plane.another_board().views())[0].state == "closed"
    assert plane.audited[-1]["by"] == "operator"
    answer = await visitor.send("/ui/health", "/ui/health/reset", name="none")
    assert answer.status_code == 404
    assert "<code>unknown_breaker</code>" in answer.text


async def test_a_delivery_and_a_job_run_again(plane: DashboardPlane, visitor: Visitor) -> None:
    """Once they have ended, also where an id has slashes in it; not while they wait."""
    for name in ("d/1 ?#", "d2"):
        await plane.receive(name)
    await plane.work("dead", error="it broke")
    path = "/ui/inbox/d%2F1%20%3F%23"
    answer = await visitor.send(path, f"{path}/redeliver", key="github:7:d/1 ?#", force="yes")
    assert answer.status_code == 303
    assert "queued again" in await visitor.get(answer.headers["location"])
    again = await visitor.send(path, f"{path}/redeliver", key="github:7:d/1 ?#")
    assert again.status_code == 409
    assert "<code>in_flight</code>" in again.text
    answer = await visitor.send("/ui/jobs/job_7_d2", "/ui/jobs/job_7_d2/redeliver")
    assert answer.headers["location"] == "/ui/jobs/job_7_d2?note=redelivered"
    assert [one["event"] for one in plane.audited[-2:]] == ["redelivered", "redelivered"]


async def test_a_run_is_unblocked(plane: DashboardPlane, visitor: Visitor) -> None:
    """A blocked one, once."""
    errand = Errand(cause="failure", forge="github", repo="octo-org/app", base_ref="main")
    job = NewJob("job_r1", OWN_QUEUE, "fix")
    await plane.runs.get_or_create("r1", "event", errand, "towline/fix", job)
    begun = await plane.runs.begin("r1", 3)
    assert begun is not None
    await plane.runs.finish("r1", begun.token, "blocked", "a scan refused it")
    answer = await visitor.send("/ui/runs/r1", "/ui/runs/r1/unblock")
    assert answer.headers["location"] == "/ui/runs/r1?note=unblocked"
    assert "Unblocked by</dt><dd>operator" in await visitor.get("/ui/runs/r1")
    answer = await visitor.send("/ui/runs/r1", "/ui/runs/r1/unblock")
    assert (answer.status_code, "<code>not_blocked</code>" in answer.text) == (409, True)


async def test_lists_are_paged_and_filtered(plane: DashboardPlane, visitor: Visitor) -> None:
    """Each delivery and each job once over all pages, also where they came in one transaction."""
    names = [f"n{number:03d}" for number in range(130)]
    await plane.receive(*names)
    for path, pattern in (("/ui/inbox", r">(n\d{3})</a>"), ("/ui/jobs", r">job_7_(n\d{3})</a>")):
        seen: list[str] = []
        address: str | None = path
        while address is not None:
            text = await visitor.get(address)
            seen += re.findall(pattern, text)
            found = re.search(r'href="(\?[^"]*before=[^"]*)">Older', text)
            address = path + found[1].replace("&amp;", "&") if found else None
        assert sorted(seen) == names, path
    assert "Nothing fits" in await visitor.get("/ui/inbox?source=gitlab")
    assert "n007" in await visitor.get("/ui/inbox?id=n007&source=x")
    assert "Nothing fits" in await visitor.get("/ui/jobs?kind=command")
    assert "Nothing fits" in await visitor.get("/ui/jobs?state=dead")


async def heard(lines: AsyncIterator[str]) -> tuple[str, dict[str, object]]:
    """The next event of a stream."""
    event = ""
    async with asyncio.timeout(20):
        async for line in lines:
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            if line.startswith("data: "):
                return event, json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream has ended")


async def test_changes_are_told(plane: DashboardPlane, visitor: Visitor) -> None:
    """Who watches is greeted with the counts, and then told which cards have changed."""
    await plane.tow("octo-org/app", 7, state="CREATED")
    async with visitor.client.stream("GET", "/ui/live?pr=octo-org/app%238") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()
        event, news = await heard(lines)
        assert (event, news["changed"]) == ("hello", [])
        await plane.tow("octo-org/app", 8, state="MERGED")
        event, news = await heard(lines)
        assert (event, news["changed"]) == ("board", ["octo-org/app#8"])
        counts = news["counts"]
        assert isinstance(counts, dict)
        assert (counts["CREATED"], counts["MERGED"]) == (1, 1)


async def test_watchers_are_bounded(plane: DashboardPlane) -> None:
    """One more than there is room for is asked to come later; at the end all are told."""
    tow = Tow(plane.pulls, plane.policy, plane.bridge, plane.rig.reconciler, plane.board)
    live = Live(plane.insights, tow, plane.clock, every=0.01, most=1)
    with live.watching(None) as watcher:
        with pytest.raises(Problem) as refused, live.watching(None):
            pass
        assert refused.value.status == 503
        live.close()
        async with asyncio.timeout(20):
            while await watcher.waiting.get() is not None:
                pass


async def test_no_session_no_stream(plane: DashboardPlane) -> None:
    """A stream needs a session like any page."""
    async with visiting(plane) as stranger:
        answer: httpx2.Response = await stranger.client.get("/ui/live")
        assert answer.status_code == 303
