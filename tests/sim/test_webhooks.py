"""Webhooks as a receiver meets them, and the log in which they can be looked up and repeated."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from tests.hook_world import served
from tests.sim.github_server import REPO, Forge, Receiver, forge
from towline.forges.github import webhooks as github
from towline_sim.github.fault_dice import HookFaults
from towline_sim.github.webhooks import Fate, HookDice

SECRET = "It's a Secret to Everybody"
EVENTS = ["push", "pull_request", "check_run", "issue_comment"]


class Scene(NamedTuple):
    there: Forge
    receiver: Receiver
    hook_id: int

    async def log(self, **query: str) -> list[dict[str, Any]]:
        path = f"/repos/{REPO}/hooks/{self.hook_id}/deliveries"
        items: list[dict[str, Any]] = (await self.there.call("GET", path, params=query)).json()
        return items


@contextlib.asynccontextmanager
async def scene(
    events: list[str] | None = None, content_type: str = "json", **options: Any
) -> AsyncIterator[Scene]:
    receiver = Receiver()
    async with served(receiver) as url, forge(**options) as there:
        config = {"url": url, "content_type": content_type, "secret": SECRET}
        made = await there.call(
            "POST", f"/repos/{REPO}/hooks", {"config": config, "events": events or EVENTS}
        )
        assert made.status_code == 201
        assert made.json()["config"]["secret"] == "********"
        await there.sim.settle()
        assert [one.event for one in receiver.taken] == ["ping"]
        receiver.taken.clear()
        yield Scene(there, receiver, made.json()["id"])


@pytest.mark.parametrize("content_type", ["json", "form"])
async def test_deliveries_are_signed_and_ours_to_read(content_type: str) -> None:
    """Each passes our own door: signature, GUID, hook and event are as GitHub sends them."""
    async with scene(content_type=content_type) as (there, receiver, hook_id):
        await there.pull()
        assert {one.event for one in receiver.taken} == {"push", "pull_request"}
        for one in receiver.taken:
            delivery = github.receive(one.headers, one.body, [SECRET], 0.0)
            assert delivery.delivery_id == one.guid
            assert delivery.repo == REPO
            assert one.headers["x-github-hook-id"] == str(hook_id)
        assert len({one.guid for one in receiver.taken}) == len(receiver.taken)


async def test_a_hook_hears_only_what_it_asked_for() -> None:
    """A hook for pushes is not told of pull requests, and a deleted one of nothing."""
    async with scene(["push"]) as (there, receiver, hook_id):
        await there.pull()
        assert {one.event for one in receiver.taken} == {"push"}
        gone = await there.call("DELETE", f"/repos/{REPO}/hooks/{hook_id}")
        assert gone.status_code == 204
        receiver.taken.clear()
        await there.pull("fix/two")
        assert receiver.taken == []


async def test_the_log_and_a_redelivery_with_the_same_guid() -> None:
    """A failed delivery is in the log; asked for again it comes once more, body and GUID alike."""
    async with scene() as here:
        there, receiver, hook_id = here
        receiver.status = 500
        there.world.comment(REPO, await there.pull(), "octocat", "/rebuild")
        await there.sim.settle()
        receiver.status = 202
        (failed,) = [one for one in await here.log() if one["event"] == "issue_comment"]
        assert (failed["status_code"], failed["action"]) == (500, "created")
        path = f"/repos/{REPO}/hooks/{hook_id}/deliveries/{failed['id']}"
        whole = (await there.call("GET", path)).json()
        assert whole["request"]["payload"]["comment"]["body"] == "/rebuild"
        assert (await there.call("POST", f"{path}/attempts")).status_code == 202
        await there.sim.settle()
        first, second = [one for one in receiver.taken if one.event == "issue_comment"]
        assert (first.guid, first.body) == (second.guid, second.body)
        newest = (await here.log())[0]
        assert (newest["guid"], newest["redelivery"], newest["status_code"]) == (
            failed["guid"],
            True,
            202,
        )


async def test_the_log_by_pages_and_by_status() -> None:
    """Newest first, cursor by cursor, each once; failures can be asked for alone."""
    async with scene() as here:
        there, receiver, _ = here
        for number in range(4):
            receiver.status = 202 if number % 2 else 500
            await there.pull(f"fix/{number}")
        seen, path = [], f"/repos/{REPO}/hooks/{here.hook_id}/deliveries?per_page=3"
        while path:
            page = await there.call("GET", path)
            seen += [one["id"] for one in page.json()]
            path = page.links.get("next", {}).get("url", "")
        assert seen == sorted(seen, reverse=True)
        assert len(seen) == 1 + len(receiver.taken)
        failures = await here.log(status="failure", per_page="100")
        assert {one["status_code"] for one in failures} == {500}


async def test_entries_leave_the_log_after_three_days() -> None:
    """As on GitHub, so that recovery has to be in time."""
    async with scene() as here:
        await here.there.pull()
        assert await here.log()
        await here.there.pass_time(3 * 86400 + 1)
        assert await here.log() == []


async def test_lost_doubled_and_late() -> None:
    """A lost one is in the log as unanswered, a doubled one comes twice, a late one afterwards."""
    fates = {
        "push": (Fate(lost=True),),
        "pull_request": (Fate(), Fate()),
        "issue_comment": (Fate(late=60.0),),
    }
    async with scene(fates=lambda event: fates.get(event.name, (Fate(),))) as here:
        there, receiver, _ = here
        number = await there.pull()
        names = [one.event for one in receiver.taken]
        assert names == ["pull_request", "pull_request"]
        assert len({one.guid for one in receiver.taken}) == 1
        assert {one["status_code"] for one in await here.log() if one["event"] == "push"} == {504}
        there.world.comment(REPO, number, "octocat", "hello")
        await there.sim.settle()
        assert len(receiver.taken) == 2
        await there.pass_time(61)
        assert receiver.taken[-1].event == "issue_comment"


async def test_two_hooks_and_the_app_share_a_guid() -> None:
    """The GUID is the event's; who it came through is in the other headers."""
    async with scene() as here, served(Receiver()) as _, served(app := Receiver()) as app_url:
        there, receiver, _ = here
        there.sim.add_app_hook(app_url, SECRET)
        await there.pull()
        pulls = [one for one in receiver.taken if one.event == "pull_request"]
        (own,) = [one for one in app.taken if one.event == "pull_request"]
        assert own.guid == pulls[0].guid
        assert own.headers["x-github-hook-installation-target-type"] == "integration"
        assert pulls[0].headers["x-github-hook-installation-target-type"] == "repository"


async def test_nobody_at_the_other_end() -> None:
    """A hook that leads nowhere is an entry in the log, and nothing else suffers."""
    async with forge() as there:
        config = {"url": "http://127.0.0.1:9/", "content_type": "json"}
        made = await there.call("POST", f"/repos/{REPO}/hooks", {"config": config})
        await there.sim.settle()
        path = f"/repos/{REPO}/hooks/{made.json()['id']}/deliveries"
        (entry,) = (await there.call("GET", path)).json()
        assert (entry["event"], entry["status_code"]) == ("ping", 504)


async def test_fates_by_chance() -> None:
    """Lost, doubled and late in their share, and the same again for the same seed."""
    faults = HookFaults(lose=0.3, duplicate=0.1, reorder=0.5, usual=(0, 1), late=(60, 120))
    async with forge() as there:
        await there.pull()
        told: list[Any] = []
        there.world.subscribe(told.append)
        there.world.comment(REPO, 1, "octocat", "hello")
        rolled = [HookDice(faults, seed=5) for _ in range(2)]
        first, second = ([dice(told[0]) for _ in range(2000)] for dice in rolled)
    assert first == second
    lost = sum(fates[0].lost for fates in first) / 2000
    twice = sum(len(fates) == 2 for fates in first) / 2000
    late = [fate.late >= 60 for fates in first for fate in fates if not fate.lost]
    assert 0.25 < lost < 0.35
    assert 0.04 < twice < 0.1
    assert 0.45 < sum(late) / len(late) < 0.55
