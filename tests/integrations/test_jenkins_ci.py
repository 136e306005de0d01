"""Builds on a simulated Jenkins over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from tests.clocks import ManualClock
from tests.hook_world import served
from towline.integrations.ci import CiRefused, CiUnavailable
from towline.integrations.jenkins.ci import JenkinsCi, job_path
from towline_once.errors import Rejected
from towline_sim.jenkins import JenkinsSim, JenkinsWorld, Outage

USER, TOKEN = "towline", "11simulated0token"
INTENT = {"TOWLINE_INTENT": "rebuild-7"}


class Place(NamedTuple):
    clock: ManualClock
    world: JenkinsWorld
    sim: JenkinsSim
    url: str
    ci: JenkinsCi

    def posts(self) -> int:
        return sum(asked.method == "POST" for asked in self.sim.asked)


@contextlib.asynccontextmanager
async def jenkins_place(deadline_seconds: float = 5.0) -> AsyncIterator[Place]:
    clock = ManualClock()
    world = JenkinsWorld(clock)
    sim = JenkinsSim(world, user=USER, token=TOKEN)
    async with served(sim) as url:
        ci = JenkinsCi(url, clock, user=USER, token=TOKEN, deadline_seconds=deadline_seconds)
        yield Place(clock, world, sim, url, ci)
        await ci.aclose()


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with jenkins_place() as opened:
        yield opened


async def test_a_build_is_queued_runs_and_ends(place: Place) -> None:
    """The item's URL leads to the build, which has its number from then on."""
    job = place.world.add_job("fixes/app", "BRANCH")
    place.world.stuck = True
    queued = await place.ci.build("fixes/app", {"BRANCH": "fix/1"})
    assert (queued.url, queued.state, queued.number) == (
        f"{place.url}/queue/item/1/",
        "queued",
        None,
    )
    assert (await place.ci.read(queued.url)).state == "queued"
    place.world.stuck = False
    running = await place.ci.read(queued.url)
    assert (running.url, running.state, running.number) == (
        f"{place.url}/job/fixes/job/app/1/",
        "running",
        1,
    )
    place.clock.advance(61)
    assert (await place.ci.read(running.url)).state == "succeeded"
    assert dict(job.builds[0].parameters) == {"BRANCH": "fix/1"}


@pytest.mark.parametrize(
    ("result", "state"),
    [
        ("SUCCESS", "succeeded"),
        ("UNSTABLE", "failed"),
        ("FAILURE", "failed"),
        ("ABORTED", "cancelled"),
        ("NOT_BUILT", "cancelled"),
        ("A_NEW_WORD", "failed"),
    ],
)
async def test_a_result_in_our_words(place: Place, result: str, state: str) -> None:
    """A word that is not known is surely not a success."""
    place.world.add_job("app").outcomes = [result]
    url = (await place.ci.build("app", {})).url
    await place.ci.read(url)
    place.clock.advance(61)
    assert (await place.ci.read(url)).state == state


async def test_an_item_that_jenkins_forgot_is_gone(place: Place) -> None:
    """Five minutes after it left the queue; its build is still there."""
    place.world.add_job("app")
    url = (await place.ci.build("app", {})).url
    build = (await place.ci.read(url)).url
    place.clock.advance(301)
    assert (await place.ci.read(url)).state == "gone"
    assert (await place.ci.read(build)).state == "succeeded"
    place.world.jobs["app"].builds.clear()
    assert (await place.ci.read(build)).state == "gone"


async def test_a_cancelled_item(place: Place) -> None:
    """Somebody took it out of the queue."""
    place.world.add_job("app")
    place.world.stuck = True
    url = (await place.ci.build("app", {})).url
    place.world.cancel(place.world.items[1])
    assert (await place.ci.read(url)).state == "cancelled"


@pytest.mark.parametrize("stage", ["queued", "running", "succeeded"])
async def test_a_lost_reply_gives_no_second_build(place: Place, stage: str) -> None:
    """The build of the same intent is found in the queue, running, and ended."""
    job = place.world.add_job("app", "TOWLINE_INTENT")
    place.world.add_job("apps/app", "TOWLINE_INTENT")
    place.world.stuck = True
    await place.ci.build("apps/app", INTENT)
    place.sim.lost_replies = 1
    with pytest.raises(CiUnavailable):
        await place.ci.build("app", INTENT)
    place.world.stuck = stage == "queued"
    if stage == "succeeded":
        place.world.settle()
        place.clock.advance(61)
    found = await place.ci.build("app", INTENT)
    assert (found.state, place.posts()) == (stage, 2)
    assert (await place.ci.read(found.url)).state == stage
    assert len(job.builds) == (stage != "queued")


async def test_another_intent_is_another_build(place: Place) -> None:
    """Also where all else is the same."""
    job = place.world.add_job("app", "TOWLINE_INTENT")
    for intent in ("one", "two"):
        await place.ci.build("app", {"TOWLINE_INTENT": intent})
    place.world.settle()
    assert [build.parameters["TOWLINE_INTENT"] for build in job.builds] == ["one", "two"]


async def test_a_job_without_parameters_is_built_without_any(place: Place) -> None:
    """Jenkins would refuse them; and a job with parameters is built with its defaults."""
    for path, parameters in (("plain", ()), ("with", ("BRANCH",))):
        place.world.add_job(path, *parameters)
    assert (await place.ci.build("plain", {"BRANCH": "fix/1"})).state == "queued"
    assert (await place.ci.build("with", {})).state == "queued"


async def test_a_crumb_is_fetched_where_it_is_asked_for(place: Place) -> None:
    """Once for all; and each build is asked for once after its refusal."""
    place.world.add_job("app", "BRANCH")
    place.sim.needs_crumb = True
    for branch in ("a", "b"):
        await place.ci.build("app", {"BRANCH": branch})
    crumbs = [asked.path for asked in place.sim.asked if "crumb" in asked.path]
    assert (len(crumbs), place.posts()) == (1, 3)
    assert len(place.world.items) == 2


@pytest.mark.parametrize(
    ("job", "path"),
    [
        ("app", "/job/app"),
        ("a/b", "/job/a/job/b"),
        ("/a/b/", "/job/a/job/b"),
        ("org/app/fix%2Fcve-1", "/job/org/job/app/job/fix%252Fcve-1"),
        ("my job", "/job/my%20job"),
        ("a?b#c", "/job/a%3Fb%23c"),
    ],
)
def test_a_jobs_path(job: str, path: str) -> None:
    """Each folder is a job, and nothing in a name leads elsewhere."""
    assert job_path(job) == path


@pytest.mark.parametrize("job", ["", "/", "a//b", "../x", "a/..", "a\nb"])
def test_a_name_that_is_none_is_refused(job: str) -> None:
    """Before anything is sent."""
    with pytest.raises(Rejected, match="named by its path"):
        job_path(job)


async def test_a_branchs_job_is_found(place: Place) -> None:
    """Jenkins encodes the slashes of a branch, and encodes that again in its URLs."""
    place.world.add_job("org/app/fix%2Fcve-1")
    url = (await place.ci.build("org/app/fix%2Fcve-1", {})).url
    assert (await place.ci.read(url)).url.endswith("/job/app/job/fix%252Fcve-1/1/")


async def test_a_jenkins_that_mistakes_its_address(place: Place) -> None:
    """Its paths are followed at the configured address; the other host hears nothing."""
    place.world.add_job("app")
    async with jenkins_place() as other:
        place.sim.believed_url = f"{other.url}/jenkins"
        queued = await place.ci.build("app", {})
        running = await place.ci.read(queued.url)
        assert (queued.url, running.url) == (
            f"{place.url}/queue/item/1/",
            f"{place.url}/job/app/1/",
        )
        assert (await place.ci.read(f"{other.url}/jenkins/job/app/1/")).url == running.url
        assert other.sim.asked == []


@pytest.mark.parametrize("url", ["", "https://x/", "https://x/job/app/", "https://x/job/../1/"])
async def test_a_url_of_no_build_is_refused(place: Place, url: str) -> None:
    """Nothing is sent for it."""
    for call in (place.ci.read(url), place.ci.log(url, 10)):
        with pytest.raises(CiRefused, match="not the URL of a Jenkins build"):
            await call
    assert place.sim.asked == []


async def test_the_end_of_a_log(place: Place) -> None:
    """A short one whole, of a long one no more than the end is sent; none before the build."""
    job = place.world.add_job("app")
    job.log = "x" * 500_000 + "java.net.SocketTimeoutException\n"
    place.world.stuck = True
    url = (await place.ci.build("app", {})).url
    assert await place.ci.log(url, 100) == ""
    place.world.stuck = False
    assert await place.ci.log(url, 100) == job.log[-100:]
    assert place.sim.asked[-1].query == f"start={len(job.log) - 100}"
    assert await place.ci.log(url, 10**6) == job.log
    assert await place.ci.log(url, 0) == ""


@pytest.mark.parametrize("outage", ["refuse", "silent", "unavailable"])
async def test_an_outage_is_told_by_the_deadline(outage: Outage) -> None:
    """Broken connections, silence and 503 are the same to the caller, and pass."""
    async with jenkins_place(deadline_seconds=0.3) as place, asyncio.timeout(10):
        place.world.add_job("app")
        url = (await place.ci.build("app", {})).url
        place.sim.outage = outage
        calls: list[Any] = [place.ci.build("app", {}), place.ci.read(url), place.ci.log(url, 10)]
        for call in calls:
            with pytest.raises(CiUnavailable):
                await call
        place.sim.outage = None
        assert (await place.ci.read(url)).state == "running"


async def test_nobody_there_is_an_outage() -> None:
    """A refused connection is one clear, transient error."""
    ci = JenkinsCi("http://127.0.0.1:9", ManualClock(), user=USER, token=TOKEN)
    with pytest.raises(CiUnavailable, match="cannot be reached"):
        await ci.build("app", {})
    await ci.aclose()


async def test_what_jenkins_refuses(place: Place) -> None:
    """No such job, a disabled one, and credentials that do not open it."""
    place.world.add_job("off").buildable = False
    with pytest.raises(CiRefused, match=r"no job absent.*404"):
        await place.ci.build("absent", {})
    with pytest.raises(CiRefused, match="disabled"):
        await place.ci.build("off", {})
    wrong = JenkinsCi(place.url, place.clock, user=USER, token="wrong")
    with pytest.raises(CiRefused, match="401"):
        await wrong.build("off", {})
    await wrong.aclose()
    assert place.posts() == 0


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, CiRefused),
        (401, CiRefused),
        (403, CiRefused),
        (302, CiUnavailable),
        (408, CiUnavailable),
        (429, CiUnavailable),
        (500, CiUnavailable),
        (502, CiUnavailable),
        (503, CiUnavailable),
        (200, CiUnavailable),
    ],
)
async def test_what_a_status_means(status: int, error: type[Exception]) -> None:
    """Wrong for good, or worth another try; a page in place of JSON is the latter."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            head = {"status": status, "headers": [(b"location", b"/login")]}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": b"<html>"})

    async with served(app) as url:
        ci = JenkinsCi(url, ManualClock(), user=USER, token=TOKEN)
        for call in (ci.build("app", {}), ci.read(f"{url}/queue/item/1/")):
            with pytest.raises(error):
                await call
        await ci.aclose()


async def test_a_jenkins_that_asks_for_quiet_gets_it() -> None:
    """After a 503 with Retry-After nothing is sent until then."""
    asked = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
            head = {"status": 503, "headers": [(b"retry-after", b"30")]}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": b""})

    clock = ManualClock()
    async with served(app) as url:
        ci = JenkinsCi(url, clock, user=USER, token=TOKEN)
        for advance, heard in ((0, 1), (29, 1), (2, 2)):
            clock.advance(advance)
            with pytest.raises(CiUnavailable):
                await ci.read(f"{url}/queue/item/1/")
            assert len(asked) == heard
        await ci.aclose()


async def test_no_token_is_said_or_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Errors and a look at the object show nothing of it, plain or encoded."""
    caplog.set_level(logging.DEBUG)
    said = [repr(place.ci), *map(repr, vars(place.ci).values())]
    place.sim.outage = "unavailable"
    with pytest.raises(CiUnavailable) as raised:
        await place.ci.build("app", {})
    said.append(str(raised.value))
    text = "".join(said) + caplog.text
    assert TOKEN not in text
    assert "Basic " not in text


@pytest.mark.parametrize(
    ("url", "user", "token"),
    [
        ("jenkins", USER, TOKEN),
        ("https://u:p@x", USER, TOKEN),
        ("https://x", "a:b", TOKEN),
        ("https://x", "", TOKEN),
        ("https://x", USER, ""),
        ("https://x", USER, "a\nb"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(url: str, user: str, token: str) -> None:
    """One line that does not say the token."""
    with pytest.raises(Rejected) as raised:
        JenkinsCi(url, ManualClock(), user=user, token=token)
    assert TOKEN not in str(raised.value)
