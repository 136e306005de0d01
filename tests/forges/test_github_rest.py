"""Limits, deadlines, redirects and wrong answers of GitHub."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.clocks import ManualClock, WrongHostClock
from tests.hook_log import Fault, HookLogSim, SimHook
from tests.hook_world import TOKEN, served
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable, repo_hook
from towline.forges.github.delivery_log import GitHubHookLog
from towline_once.errors import Rejected

HOOK = repo_hook("acme/app:17")


async def _redirecting(target: str, sim: HookLogSim, scope: Any, receive: Any, send: Any) -> None:
    """A GitHub on which acme/app was renamed, so that its old name answers with another place."""
    if scope["type"] == "http" and scope["path"].startswith("/repos/acme/app/"):
        headers = [(b"location", target.encode())]
        await send({"type": "http.response.start", "status": 301, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
    else:
        await sim(scope, receive, send)


async def test_a_renamed_repository_is_followed_on_the_same_host_only(
    sim: HookLogSim, clock: ManualClock
) -> None:
    """A redirect within GitHub leads to the log; one to another host gets no request at all."""
    sim.record(sim.add_repo_hook("acme/renamed", 17), "push", {}, status_code=200)
    other = HookLogSim(clock, token=TOKEN)
    async with served(other) as other_url:
        for place, follows in [("", True), (other_url, False)]:
            target = f"{place}/repos/acme/renamed/hooks/17/deliveries"

            async def app(scope: Any, receive: Any, send: Any, target: str = target) -> None:
                await _redirecting(target, sim, scope, receive, send)

            async with served(app) as url:
                log = GitHubHookLog(url, clock, token=TOKEN)
                if follows:
                    assert len((await log.page(HOOK)).entries) == 1
                else:
                    with pytest.raises(ForgeUnreadable, match="another host"):
                        await log.page(HOOK)
                await log.aclose()
    assert other.asked == []


@pytest.mark.parametrize(
    ("kind", "headers", "seconds"),
    [
        ("limited", {"retry-after": "90"}, 90),
        ("refusing", {"retry-after": "7"}, 7),
        ("limited", {}, 60),
        ("refusing", {}, 60),
        ("limited", {"retry-after": "soon"}, 60),
        ("limited", {"retry-after": "99999999999999"}, 3600),
        ("limited", {"x-ratelimit-remaining": "12", "x-ratelimit-reset": "9"}, 60),
    ],
)
async def test_a_limit_is_obeyed(
    kind: Any,
    headers: dict[str, str],
    seconds: float,
    sim: HookLogSim,
    hook: SimHook,
    log: GitHubHookLog,
    clock: ManualClock,
) -> None:
    """Until the time GitHub asked for, or a minute, has passed, nothing is sent; then it is."""
    sim.faults = [Fault(kind, headers=headers)]
    with pytest.raises(ForgeUnavailable) as refusal:
        await log.page(HOOK)
    assert refusal.value.retry_after == seconds
    sim.faults = []
    clock.advance(seconds - 1)
    with pytest.raises(ForgeUnavailable) as still:
        await log.page(HOOK)
    assert 0 < still.value.retry_after <= 1
    assert (str(still.value), len(sim.asked)) == (str(refusal.value), 1)
    clock.advance(2)
    await log.page(HOOK)
    assert len(sim.asked) == 2


async def test_the_rate_limit_ends_at_its_reset_by_the_forges_clock(
    sim: HookLogSim, hook: SimHook, url: str
) -> None:
    """x-ratelimit-reset is compared with the Date of the answer, not with our own clock."""
    log = GitHubHookLog(url, WrongHostClock(), token=TOKEN)
    reset = sim.clock.now_us() // 10**6 + 300
    limit = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(reset)}
    sim.faults = [Fault("refusing", headers=limit)]
    with pytest.raises(ForgeUnavailable) as refusal:
        await log.page(HOOK)
    assert 290 <= refusal.value.retry_after <= 301
    await log.aclose()


async def test_unexplained_limits_wait_longer_each_time(
    sim: HookLogSim, hook: SimHook, log: GitHubHookLog, clock: ManualClock
) -> None:
    """A minute, two, four; and a minute again after an answer."""
    sim.faults = [Fault("limited")]
    waits = []
    for _ in range(3):
        with pytest.raises(ForgeUnavailable) as refusal:
            await log.page(HOOK)
        waits.append(refusal.value.retry_after)
        clock.advance(waits[-1] + 1)
    sim.faults = []
    await log.page(HOOK)
    sim.faults = [Fault("limited")]
    with pytest.raises(ForgeUnavailable) as refusal:
        await log.page(HOOK)
    assert [*waits, refusal.value.retry_after] == [60, 120, 240, 60]


async def test_a_limit_holds_for_all_hooks_and_a_refusal_for_one(
    sim: HookLogSim, hook: SimHook, log: GitHubHookLog
) -> None:
    """A hook we may not read does not keep us from the others; a rate limit does."""
    other = repo_hook("acme/lib:18")
    sim.add_repo_hook("acme/lib", 18)
    sim.faults = [Fault("refusing", path="/repos/acme/app/")]
    with pytest.raises(ForgeUnavailable):
        await log.page(HOOK)
    await log.page(other)
    sim.faults = [Fault("limited", headers={"retry-after": "30"})]
    for limited in (other, repo_hook("acme/third:19")):
        with pytest.raises(ForgeUnavailable) as refusal:
            await log.page(limited)
        assert 29 < refusal.value.retry_after <= 30
    assert len(sim.asked) == 3


async def test_a_silent_github_ends_by_the_deadline(
    sim: HookLogSim, hook: SimHook, url: str, clock: ManualClock
) -> None:
    """A connection that is accepted and never answered costs the deadline and no more."""
    log = GitHubHookLog(url, clock, token=TOKEN, deadline_seconds=0.2)
    sim.faults = [Fault("silent")]
    async with asyncio.timeout(5):
        with pytest.raises(ForgeUnavailable, match=r"did not answer about hook .* within 0\.2 s"):
            await log.page(HOOK)
    await log.aclose()


async def test_nobody_there_is_an_outage(clock: ManualClock) -> None:
    """A refused connection is one clear, transient error."""
    log = GitHubHookLog("http://127.0.0.1:9", clock, token=TOKEN)
    with pytest.raises(ForgeUnavailable, match="cannot be reached"):
        await log.page(HOOK)
    await log.aclose()


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("failing", ForgeUnavailable, r"\(500: simulated: failing\)"),
        ("truncated", ForgeUnreadable, "not JSON"),
        ("missing", ForgeRefused, r"no hook acme/app:17, or .* \(404"),
    ],
)
async def test_a_wrong_answer_has_its_own_error(
    kind: Any, error: Any, says: str, sim: HookLogSim, hook: SimHook, log: GitHubHookLog
) -> None:
    """An outage, garbage and a deleted hook are told apart."""
    sim.record(hook, "push", {}, status_code=200)
    sim.faults = [Fault(kind)]
    with pytest.raises(error, match=says) as raised:
        await log.page(HOOK)
    assert type(raised.value) is error


async def test_no_token_is_said_or_logged(
    sim: HookLogSim, hook: SimHook, url: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Wrong credentials, faults and a look at the object show nothing of the token."""
    caplog.set_level(logging.DEBUG)
    log = GitHubHookLog(url, clock, token="ghp_wrong_secret", deadline_seconds=0.2)
    said = [repr(log), repr(vars(log)["_rest"])]
    for fault in [[], [Fault("silent")], [Fault("failing")]]:
        sim.faults = fault
        with pytest.raises((ForgeRefused, ForgeUnavailable)) as raised:
            await log.page(HOOK)
        said.append(str(raised.value))
    assert "(401: Bad credentials)" in said[2]
    assert "ghp_wrong" not in "".join(said) + caplog.text
    await log.aclose()


@pytest.mark.parametrize("url", ["", "api.github.com", "ftp://x", "https://u:p@x", "https://x?y=1"])
def test_an_api_url_that_is_none_is_refused(url: str, clock: ManualClock) -> None:
    """What is no plain http address is named at the start."""
    with pytest.raises(Rejected, match="API's URL"):
        GitHubHookLog(url, clock, token=TOKEN)
