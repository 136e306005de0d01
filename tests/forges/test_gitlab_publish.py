"""Proposing changes to GitLab: where git goes, and one merge request for each branch."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.github_script import Reply, ScriptedGitHub
from tests.hook_world import served
from towline.forges.base import NewPull, Opened
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable
from towline.forges.gitlab.forge import GitLabForge

TOKEN = "glpat-simulated-token"
REPO = "octo-org/tools/app"
REQUESTS = "/api/v4/projects/octo-org/tools/app/merge_requests"
WORDS: dict[str, Any] = {"title": "Fix it", "body": "Because.", "labels": ["towline", "bot"]}


def request(**fields: Any) -> dict[str, Any]:
    return {
        "iid": 3,
        "web_url": "https://gitlab.example.test/3",
        "source_branch": "towline/x",
        "target_branch": "main",
        "source_project_id": 1,
        "target_project_id": 1,
        "state": "opened",
        **fields,
    }


@contextlib.asynccontextmanager
async def gitlab() -> AsyncIterator[tuple[ScriptedGitHub, GitLabForge, str]]:
    clock = ManualClock()
    server = ScriptedGitHub(clock)
    project = {
        "path_with_namespace": REPO,
        "default_branch": "trunk",
        "http_url_to_repo": "http://evil.test/x",
    }
    server.on("GET /api/v4/projects/octo-org/tools/app", Reply(200, project))
    server.on("GET /api/v4/projects/17", Reply(200, project))
    async with served(server) as url:
        forge = GitLabForge(f"{url}/api/v4", clock, token=TOKEN, deadline_seconds=2.0)
        yield server, forge, url
        await forge.aclose()


async def test_where_git_goes() -> None:
    """To the API's own host, by the project's path; a number is looked up."""
    async with gitlab() as (_, forge, url):
        for name in (REPO, "17"):
            access = await forge.git_access(name)
            assert (access.url, access.user, access.password) == (
                f"{url}/{REPO}.git",
                "oauth2",
                TOKEN,
            )
            assert TOKEN not in repr(access)
        assert await forge.default_branch(REPO) == "trunk"


async def test_a_merge_request_is_opened_with_its_labels() -> None:
    """One call, which says all that there is to say."""
    async with gitlab() as (server, forge, _):
        server.on(f"GET {REQUESTS}", Reply(200, []))
        server.on(f"POST {REQUESTS}", Reply(201, request()))
        opened = await forge.open_pull(NewPull(REPO, head="towline/x", base="main", **WORDS))
        assert opened == Opened(3, "https://gitlab.example.test/3")
        (body,) = server.bodies(f"POST {REQUESTS}")
        assert body["labels"] == "towline,bot"
        assert (body["source_branch"], body["target_branch"]) == ("towline/x", "main")


async def test_what_is_open_already_is_adopted() -> None:
    """Found before, or found after a 409; its labels are added in either case."""
    for lists in ([Reply(200, [request()])], [Reply(200, []), Reply(200, [request()])]):
        async with gitlab() as (server, forge, _):
            server.on(f"GET {REQUESTS}", *lists)
            server.on(f"POST {REQUESTS}", Reply(409, {"message": ["Another open merge request"]}))
            server.on(f"PUT {REQUESTS}/3", Reply(200, request()))
            opened = await forge.open_pull(NewPull(REPO, head="towline/x", base="main", **WORDS))
            assert opened == Opened(3, "https://gitlab.example.test/3", created=False)
            assert server.bodies(f"PUT {REQUESTS}/3") == [{"add_labels": "towline,bot"}]


async def test_a_lost_answer_is_looked_for() -> None:
    """After an error the branch's merge request is searched; without one the error stands."""
    for found in ([request()], []):
        async with gitlab() as (server, forge, _):
            server.on(f"GET {REQUESTS}", Reply(200, []), Reply(200, found))
            server.on(f"POST {REQUESTS}", Reply(502, {}))
            if found:
                assert (
                    await forge.open_pull(NewPull(REPO, head="towline/x", base="main", **WORDS))
                ).created
            else:
                with pytest.raises(ForgeUnavailable):
                    await forge.open_pull(NewPull(REPO, head="towline/x", base="main", **WORDS))
            assert server.count(f"POST {REQUESTS}") == 1


async def test_what_cannot_be_opened_is_refused_with_the_reason() -> None:
    """Neither a refusal nor a fork's merge request passes for ours."""
    async with gitlab() as (server, forge, _):
        server.on(f"GET {REQUESTS}", Reply(200, [request(source_project_id=9)]))
        server.on(f"POST {REQUESTS}", Reply(400, {"message": "source_branch does not exist"}))
        with pytest.raises(ForgeRefused, match="does not exist"):
            await forge.open_pull(NewPull(REPO, head="towline/x", base="main", **WORDS))
