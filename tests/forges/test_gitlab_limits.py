"""Limits, deadlines, redirects and wrong answers of GitLab, over real HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.gitlab_place import REPO, TOKEN, Place, gitlab_place, ref_of
from tests.hook_world import served
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.gitlab.forge import GitLabForge
from towline_once.errors import Rejected
from towline_sim.gitlab.server import GitLabFault


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with gitlab_place() as opened:
        yield opened


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "90"}, 90),
        ({"retry-after": "99999999999"}, 3600),
        ({"retry-after": "soon", "ratelimit-reset": "none"}, 60),
    ],
)
async def test_a_limit_is_obeyed(place: Place, headers: dict[str, str], seconds: float) -> None:
    """Until then nothing is sent, whatever is asked for; then it is."""
    place.sim.faults = [GitLabFault("limited", headers=headers)]
    with pytest.raises(ForgeUnavailable) as refusal:
        await place.forge.open_pulls(REPO)
    assert refusal.value.retry_after == seconds
    place.sim.faults = []
    place.clock.advance(seconds - 1)
    with pytest.raises(ForgeUnavailable) as still:
        await place.forge.permission(REPO, "octocat")
    assert 0 < still.value.retry_after <= 1
    assert len(place.sim.asked) == 1
    place.clock.advance(2)
    assert await place.forge.open_pulls(REPO) == []


async def test_without_retry_after_the_reset_counts(place: Place) -> None:
    """RateLimit-Reset is a moment by GitLab's clock."""
    reset = str(place.clock.now_us() // 10**6 + 300)
    place.sim.faults = [GitLabFault("limited", headers={"ratelimit-reset": reset})]
    with pytest.raises(ForgeUnavailable) as refusal:
        await place.forge.open_pulls(REPO)
    assert 290 <= refusal.value.retry_after <= 301


async def test_a_limited_merge_is_not_looked_for(place: Place) -> None:
    """GitLab did not even read it, and asks for silence."""
    request = place.world.open_request(place.project)
    place.sim.faults = [GitLabFault("limited", path="/merge", headers={"retry-after": "5"})]
    with pytest.raises(ForgeUnavailable) as refusal:
        await place.forge.merge(ref_of(request), request.sha)
    assert (refusal.value.retry_after, len(place.sim.asked)) == (5, 1)


async def test_the_allowance_is_as_last_told(place: Place) -> None:
    """None before the first answer, then what its headers say."""
    assert await place.forge.allowance() is None
    place.sim.remaining = 41
    await place.forge.open_pulls(REPO)
    left = await place.forge.allowance()
    assert left is not None
    assert (left.limit, left.remaining) == (2000, 40)
    assert 50e6 < left.reset_us - place.clock.now_us() < 70e6


async def test_a_silent_gitlab_ends_by_the_deadline() -> None:
    """A connection that is accepted and never answered costs the deadline and no more."""
    async with gitlab_place(deadline_seconds=0.2) as place, asyncio.timeout(5):
        place.sim.faults = [GitLabFault("silent")]
        with pytest.raises(ForgeUnavailable, match=r"project .* within 0\.2 s"):
            await place.forge.open_pulls(REPO)
        request = place.world.open_request(place.project)
        with pytest.raises(ForgeUnavailable):
            await place.forge.look([ref_of(request)])


async def test_many_slow_answers_end_by_the_calls_own_deadline(place: Place) -> None:
    """Each of them comes in time, but all together would take for ever."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.4 if scope["type"] == "http" else 0)
        await place.sim(scope, receive, send)

    refs = [ref_of(place.world.open_request(place.project)) for _ in range(60)]
    async with served(app) as url, asyncio.timeout(15):
        forge = GitLabForge(f"{url}/api/v4", place.clock, token=TOKEN, deadline_seconds=1.0)
        with pytest.raises(ForgeUnavailable, match=r"come to an end in 4 s"):
            await forge.look(refs)
        await forge.aclose()


async def test_nobody_there_is_an_outage() -> None:
    """A refused connection is one clear, transient error."""
    forge = GitLabForge("http://127.0.0.1:9/api/v4", ManualClock(), token=TOKEN)
    with pytest.raises(ForgeUnavailable, match="cannot be reached"):
        await forge.open_pulls(REPO)
    await forge.aclose()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (GitLabFault("failing"), ForgeUnavailable),
        (GitLabFault("failing", status=503), ForgeUnavailable),
        (GitLabFault("failing", status=403), ForgeRefused),
        (GitLabFault("failing", status=400), ForgeRefused),
        (GitLabFault("garbled"), ForgeUnreadable),
    ],
)
async def test_a_wrong_answer_has_its_own_error(
    place: Place, fault: GitLabFault, error: type[Exception]
) -> None:
    """An outage, a refusal and garbage are told apart."""
    place.sim.faults = [fault]
    with pytest.raises(error) as raised:
        await place.forge.open_pulls(REPO)
    assert type(raised.value) is error


async def test_one_failing_detail_fails_the_look(place: Place) -> None:
    """Nobody is told to be gone because a request about it failed."""
    requests = [place.world.open_request(place.project) for _ in range(20)]
    place.sim.faults = [GitLabFault("failing", path="/merge_requests/13/approvals")]
    with pytest.raises(ForgeUnavailable, match="approvals of"):
        await place.forge.look([ref_of(one) for one in requests])


@pytest.mark.parametrize("follows", [True, False])
async def test_a_renamed_project_is_followed_on_the_same_host_only(
    place: Place, follows: bool
) -> None:
    """A redirect to another host gets no request at all."""
    async with gitlab_place() as other:
        target = f"{'' if follows else other.url}/api/v4/projects/octo-org%2Ftools%2Fapp"

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and b"old%2Fname" in scope["raw_path"]:
                location = f"{target}/merge_requests?state=opened".encode()
                head = {"status": 301, "headers": [(b"location", location)]}
                await send({"type": "http.response.start", **head})
                await send({"type": "http.response.body", "body": b""})
            else:
                await place.sim(scope, receive, send)

        place.world.open_request(place.project)
        async with served(app) as url:
            forge = GitLabForge(f"{url}/api/v4", place.clock, token=TOKEN)
            if follows:
                assert len(await forge.open_pulls("old/name")) == 1
            else:
                with pytest.raises(ForgeUnreadable, match="another host"):
                    await forge.open_pulls("old/name")
            await forge.aclose()
        assert other.sim.asked == []


async def test_no_token_is_said_or_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Faults and a look at the object show nothing of the token."""
    caplog.set_level(logging.DEBUG)
    said = [repr(place.forge), *map(repr, vars(place.forge).values())]
    for fault in (GitLabFault("failing"), GitLabFault("failing", status=403)):
        place.sim.faults = [fault]
        with pytest.raises((ForgeRefused, ForgeUnavailable)) as raised:
            await place.forge.open_pulls(REPO)
        said.append(str(raised.value))
    assert "glpat" not in "".join(said) + caplog.text
    assert place.sim.asked[0].headers["private-token"] == TOKEN


@pytest.mark.parametrize("url", ["", "gitlab.com", "ftp://x", "https://u:p@x", "https://x?y=1"])
def test_an_api_url_that_is_none_is_refused(url: str) -> None:
    """One line that says what it must be like."""
    with pytest.raises(Rejected, match="must be like"):
        GitLabForge(url, ManualClock(), token=TOKEN)


def test_a_token_that_cannot_be_sent_is_refused() -> None:
    """Without saying it."""
    with pytest.raises(Rejected, match="printable ASCII") as raised:
        GitLabForge("https://x/api/v4", ManualClock(), token="glpat\n")
    assert "glpat" not in str(raised.value)
