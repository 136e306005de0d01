"""Proposing changes to GitHub: where git goes, and one pull request for each branch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.github_script import HEAD, REPO, Play, Reply, played, pull, says
from tests.hook_world import TOKEN
from tests.sim.github_server import REPO as SIM_REPO
from tests.sim.github_server import TOKEN as SIM_TOKEN
from tests.sim.github_server import Forge as Place
from tests.sim.github_server import forge as place
from towline.forges.base import NewPull, Opened
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable
from towline.forges.github.forge import GitHubForge
from towline.forges.github.rate_limit import Limits
from towline_sim.github.fault_dice import Fault, FaultDice, FaultKind
from towline_sim.github.faults import HttpFault
from towline_sim.in_process import WorldForge

BRANCH = "towline/fix-1"
WORDS: dict[str, Any] = {"title": "Fix it", "body": "Because.", "labels": ["towline"]}


def branch(there: Place) -> None:
    world = there.world
    world.create_ref(SIM_REPO, f"refs/heads/{BRANCH}", world.branch(SIM_REPO, "main"), "octocat")
    world.write_files(SIM_REPO, BRANCH, {"x": b"x\n"}, "Fix it", "octocat")


def client(there: Place, deadline_seconds: float = 15.0) -> GitHubForge:
    return GitHubForge(
        there.url, there.clock, token=SIM_TOKEN, deadline_seconds=deadline_seconds, limits=Limits()
    )


@pytest.mark.parametrize(
    ("api", "url"),
    [
        ("https://api.github.com", "https://github.com/octo-org/app.git"),
        ("https://ghes.example.test/api/v3", "https://ghes.example.test/octo-org/app.git"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/octo-org/app.git"),
    ],
)
async def test_where_git_goes(api: str, url: str) -> None:
    """The clone URL follows from the API's, and holds no credentials."""
    forge = GitHubForge(api, ManualClock(), token=TOKEN)
    access = await forge.git_access("octo-org/app")
    assert (access.url, access.user, access.password) == (url, "x-access-token", TOKEN)
    assert TOKEN not in repr(access)
    await forge.aclose()


async def test_one_pull_request_however_often_it_is_asked_for() -> None:
    """The first call opens and labels it, the second finds it, in process and over HTTP alike."""
    async with place() as there:
        branch(there)
        forge = client(there)
        assert await forge.default_branch(SIM_REPO) == "main"
        first = await forge.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
        again = await forge.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
        near = await WorldForge(there.world, root=there.url).open_pull(
            NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS)
        )
        assert first.created
        assert again == near == first._replace(created=False)
        (opened,) = there.world.pulls(SIM_REPO)
        assert (opened.title, opened.body) == ("Fix it", "Because.")
        assert [label.name for label in opened.labels] == ["towline"]
        await forge.aclose()


@pytest.mark.parametrize("kind", ["reply_failing", "reply_silent"])
async def test_a_lost_answer_is_looked_for(kind: str) -> None:
    """It was opened, though nobody said so: one pull request, and it counts as ours."""
    async with place() as there:
        branch(there)
        forge = client(there, deadline_seconds=1.5)
        path = f"/repos/{SIM_REPO}/pulls"
        there.sim.faults.append(
            HttpFault(kind=kind, method="POST", path=path, times=1)  # type: ignore[arg-type]
        )
        opened = await forge.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
        assert opened.created
        assert len(there.world.pulls(SIM_REPO)) == 1
        await forge.aclose()


async def test_what_cannot_be_opened_is_refused_with_the_reason() -> None:
    """A branch that is not there, or has nothing new, is no trouble that passes."""
    async with place() as there:
        forge = client(there)
        near = WorldForge(there.world)
        world = there.world
        world.create_ref(SIM_REPO, "refs/heads/same", world.branch(SIM_REPO, "main"), "octocat")
        for publisher in (forge, near):
            for head, reason in (("gone", "Validation"), ("same", "No commits between")):
                with pytest.raises(ForgeRefused, match=reason):
                    await publisher.open_pull(NewPull(SIM_REPO, head=head, base="main", **WORDS))
            with pytest.raises(ForgeRefused):
                await publisher.default_branch("demo/gone")
        await forge.aclose()


def _existing(play: Play, *lists: Reply) -> None:
    play.github.on(f"GET /repos/{REPO}/pulls", *lists)
    play.github.on(
        f"POST /repos/{REPO}/pulls",
        Reply(
            422,
            {
                **says("Validation Failed"),
                "errors": [{"message": "A pull request already exists for octo-org:bump."}],
            },
        ),
    )
    play.github.on(f"POST /repos/{REPO}/issues/7/labels", Reply(200, []))


async def test_one_that_appears_meanwhile_is_adopted() -> None:
    """422 says that it exists by now: it is looked for by its head, and taken."""
    seen = pull(html_url=f"https://github.com/{REPO}/pull/7")
    async with played(ManualClock()) as play:
        _existing(play, Reply(200, []), Reply(200, [seen]))
        opened = await play.forge.open_pull(NewPull(REPO, head="bump", base="main", **WORDS))
        assert opened == Opened(7, f"https://github.com/{REPO}/pull/7", created=False)
        asked = [one.query for one in play.github.asked if one.method == "GET"]
        assert all("head=octo-org%3Abump" in query and "state=all" in query for query in asked)
        assert play.github.bodies(f"POST /repos/{REPO}/issues/7/labels") == [
            {"labels": ["towline"]}
        ]


async def test_a_forks_branch_of_the_same_name_is_not_ours() -> None:
    """What somebody else opened from a fork is not adopted."""
    theirs = {"sha": HEAD, "ref": "bump", "repo": {"full_name": "octocat/app"}}
    async with played(ManualClock()) as play:
        _existing(play, Reply(200, [pull(html_url="https://x.test", head=theirs)]))
        with pytest.raises(ForgeRefused, match="already exists"):
            await play.forge.open_pull(NewPull(REPO, head="bump", base="main", **WORDS))


async def test_a_refused_label_says_so() -> None:
    """The tow finds it by its label: without one the call does not pass for done."""
    async with played(ManualClock()) as play:
        _existing(play, Reply(200, [pull(html_url="https://x.test")]))
        play.github.on(f"POST /repos/{REPO}/issues/7/labels", Reply(403, says("Not for you")))
        with pytest.raises(ForgeRefused, match="Not for you"):
            await play.forge.open_pull(NewPull(REPO, head="bump", base="main", **WORDS))


async def test_the_world_in_process_loses_answers_too() -> None:
    """A lost answer is looked for; an error that struck before leaves nothing behind."""
    async with place() as there:
        branch(there)
        cases: list[tuple[FaultKind, int]] = [("error", 0), ("lost_reply", 1)]
        for kind, count in cases:
            forge = WorldForge(there.world, Scripted(None, Fault(kind, 1.0), None, None))
            if kind == "error":
                with pytest.raises(ForgeUnavailable):
                    await forge.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
            else:
                assert (
                    await forge.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
                ).created
            assert len(there.world.pulls(SIM_REPO)) == count


class Scripted(FaultDice):
    """Faults in the order that they are given in."""

    def __init__(self, *faults: Fault | None) -> None:
        super().__init__()
        self._faults = list(faults)

    def draw(self, *_: object, **__: object) -> Fault | None:
        return self._faults.pop(0) if self._faults else None
