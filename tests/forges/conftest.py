"""A simulated GitHub over real HTTP, and the client that reads its delivery log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.clocks import ManualClock
from tests.hook_log import HookLogSim, SimHook
from tests.hook_world import TOKEN, served
from towline.forges.github.delivery_log import GitHubHookLog


@pytest.fixture
def sim(clock: ManualClock) -> HookLogSim:
    return HookLogSim(clock, token=TOKEN)


@pytest.fixture
def hook(sim: HookLogSim) -> SimHook:
    return sim.add_repo_hook("acme/app", 17)


@pytest.fixture
async def url(sim: HookLogSim) -> AsyncIterator[str]:
    async with served(sim) as address:
        yield address
    await sim.aclose()


@pytest.fixture
async def log(url: str, clock: ManualClock) -> AsyncIterator[GitHubHookLog]:
    opened = GitHubHookLog(url, clock, token=TOKEN)
    yield opened
    await opened.aclose()
