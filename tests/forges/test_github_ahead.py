"""Asking GitHub ahead whether pull requests conflict: one small call, or none."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.forges.github_script import REF, Reply, played
from tests.forges.test_github_look import ASK, data, node
from tests.sim.github_server import REPO, TOKEN, forge
from towline.forges.base import AsksAhead
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.github.forge import GitHubForge
from towline.forges.snapshot import PullRef


async def test_one_call_tells_how_many_are_not_known(clock: ManualClock) -> None:
    """Only open ones count: GitHub works nothing out for what is closed."""
    async with played(clock) as play:
        assert isinstance(play.forge, AsksAhead)
        play.github.on(ASK, data(node(mergeable="UNKNOWN")))
        assert await play.forge.ask_ahead([REF, REF]) == 1
        play.github.on(ASK, data(node(mergeable="UNKNOWN", state="CLOSED")))
        assert await play.forge.ask_ahead([REF]) == 0
        play.github.on(ASK, data(node(mergeable="CONFLICTING")))
        assert await play.forge.ask_ahead([REF]) == 0
        assert (play.forge.calls.total, play.naps.taken) == (3, [])


async def test_without_graphql_nothing_is_asked(clock: ManualClock) -> None:
    """By REST it would cost as much as to look."""
    async with played(clock) as play:
        play.github.on(ASK, Reply(404, {"message": "Not Found"}))
        assert await play.forge.ask_ahead([REF]) == 0
        assert (play.forge.calls.graphql, play.forge.calls.reads) == (1, 0)
        clock.advance(1800)
        assert await play.forge.ask_ahead([REF]) == 0
        assert play.forge.calls.total == 1
        clock.advance(1801)
        play.github.on(ASK, data(node(mergeable="UNKNOWN")))
        assert await play.forge.ask_ahead([REF]) == 1, "it is tried again after an hour"


async def test_an_outage_is_told(clock: ManualClock) -> None:
    """The caller decides what to make of it."""
    async with played(clock) as play:
        play.github.on(ASK, Reply(502))
        with pytest.raises(ForgeUnavailable):
            await play.forge.ask_ahead([REF])


async def test_it_is_what_makes_github_begin() -> None:
    """A look after a while then knows, in its first answer."""
    async with forge() as sim:
        ref = PullRef("github", REPO, await sim.pull())
        sim.world.write_files(REPO, "main", {"NEWS.md": b"News\n"}, "News", "octocat")
        client = GitHubForge(sim.url, sim.clock, token=TOKEN)
        assert await client.ask_ahead([ref]) == 1
        assert client.calls.points == 1
        sim.clock.advance(6)
        assert (await client.look([ref]))[ref].conflicts is False
        await client.aclose()
