"""Every operation that GitHub describes and the simulator has answers as GitHub describes it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest

from tests.sim import openapi
from tests.sim.github_server import REPO, Forge, forge
from towline_sim.github.entities import Protection
from towline_sim.github.rest.routes import ROUTES

OWNER, NAME = REPO.split("/")


def content(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Walk:
    """Calls operations by the description's own paths, and holds each answer against it."""

    def __init__(self, there: Forge) -> None:
        self.there = there
        self.seen: set[tuple[str, str]] = set()
        self.tokens: dict[str, str] = {}

    async def __call__(
        self, method: str, described: str, body: Any = None, status: int = 200, **more: Any
    ) -> Any:
        """The path is shortened: a repository's operations begin with their own part."""
        if not described.startswith("/"):
            described = f"/repos/{{owner}}/{{repo}}/{described}"
        as_whom = more.pop("as_whom", None)
        query = more.pop("query", {})
        given = {"owner": OWNER, "repo": NAME, **more}
        real = described.rstrip("/").format(**given)
        described = described.rstrip("/")
        headers = {"authorization": f"Bearer {self.tokens[as_whom]}"} if as_whom else {}
        answer = await self.there.call(method, real, body, headers=headers, params=query)
        assert answer.status_code == status, f"{method} {real}: {answer.status_code} {answer.text}"
        value = answer.json() if answer.content else None
        openapi.check(method, described, status, value)
        self.seen.add((method, described))
        return value

    async def sign_in_as_app(self) -> None:
        now = self.there.clock.now_us() // 1_000_000
        claims = {"iat": now - 60, "exp": now + 540, "iss": str(self.there.sim.app.id)}
        self.tokens["app"] = jwt.encode(claims, "k" * 32, algorithm="HS256")
        await self("GET", "/app", as_whom="app")
        (installation,) = await self("GET", "/app/installations", as_whom="app")
        made = await self(
            "POST",
            "/app/installations/{installation_id}/access_tokens",
            status=201,
            installation_id=installation["id"],
            as_whom="app",
        )
        self.tokens["installation"] = made["token"]


@pytest.fixture
async def walk() -> AsyncIterator[Walk]:
    openapi.description()
    async with forge() as there:
        yield Walk(there)


async def _repository(walk: Walk) -> None:
    world = walk.there.world
    world.set_permission(REPO, "octocat", "maintain")
    world.protect(REPO, "main", Protection(required_checks=("ci",), required_approvals=0))
    await walk("GET", "/user")
    await walk("GET", "/rate_limit")
    await walk("GET", "")
    await walk("GET", "", status=404, repo="missing")
    await walk("GET", "collaborators")
    found = await walk("GET", "collaborators/{username}/permission", username="octocat")
    assert (found["permission"], found["role_name"]) == ("write", "maintain")
    await walk("GET", "collaborators/{username}/permission", status=404, username="nobody-here")
    await walk("GET", "branches/{branch}", branch="main")
    await walk("GET", "branches/{branch}", status=404, branch="missing")
    await walk("GET", "branches/{branch}/protection", branch="main")
    world.protect(REPO, "main", None)
    await walk("GET", "branches/{branch}/protection", status=404, branch="main")


async def _git(walk: Walk) -> None:
    main = walk.there.world.ref(REPO, "refs/heads/main")
    await walk("POST", "git/refs", {"ref": "refs/heads/x", "sha": main}, 201)
    await walk("POST", "git/refs", {"ref": "refs/heads/x", "sha": main}, 422)
    await walk("GET", "git/ref/{ref}", ref="heads/x")
    await walk("GET", "git/ref/{ref}", status=404, ref="heads/y")
    file = {"message": "Add", "content": content("1\n"), "branch": "x"}
    made = await walk("PUT", "contents/{path}", file, 201, path="a.txt")
    await walk("PUT", "contents/{path}", file, 422, path="a.txt")
    wrong = {**file, "content": content("2\n"), "sha": main}
    await walk("PUT", "contents/{path}", wrong, 409, path="a.txt")
    again = {**file, "content": content("2\n"), "sha": made["content"]["sha"]}
    await walk("PUT", "contents/{path}", again, 200, path="a.txt")
    await walk("GET", "contents/{path}", path="a.txt", query={"ref": "x"})
    await walk("GET", "contents/{path}", path="src")
    await walk("GET", "contents/{path}", status=404, path="missing")
    await walk("GET", "commits/{ref}", ref="x")
    await walk("GET", "commits/{ref}", status=422, ref="0" * 40)
    await walk("GET", "compare/{basehead}", basehead="main...x")
    await walk("POST", "git/refs", {"ref": "refs/heads/y", "sha": main}, 201)
    await walk("POST", "merges", {"base": "y", "head": "x"}, 201)
    await walk("POST", "merges", {"base": "y", "head": "x"}, 204)
    await walk("PATCH", "git/refs/{ref}", {"sha": main, "force": True}, 200, ref="heads/y")
    await walk("DELETE", "git/refs/{ref}", status=204, ref="heads/y")
    await walk("DELETE", "git/refs/{ref}", status=422, ref="heads/y")


async def _pulls(walk: Walk) -> None:
    ask = {"title": "One", "head": "x", "base": "main", "body": "text"}
    pull = await walk("POST", "pulls", ask, 201)
    await walk("POST", "pulls", ask, 422)
    number = {"pull_number": pull["number"], "issue_number": pull["number"]}
    await walk("GET", "pulls", query={"state": "all"})
    await walk("GET", "pulls/{pull_number}", **number)
    await walk("GET", "pulls/{pull_number}", status=404, pull_number=99)
    await walk.there.pass_time(10)
    await walk("PATCH", "pulls/{pull_number}", {"title": "Two"}, **number)
    await walk("PATCH", "pulls/{pull_number}", {"state": "closed"}, **number)
    await walk("PATCH", "pulls/{pull_number}", {"state": "open"}, **number)
    await walk("GET", "pulls/{pull_number}/files", **number)
    await walk("GET", "pulls/{pull_number}/commits", **number)
    comment = await walk("POST", "issues/{issue_number}/comments", {"body": "/why"}, 201, **number)
    one = {"comment_id": comment["id"]}
    await walk("GET", "issues/{issue_number}/comments", **number)
    await walk("GET", "issues/comments/{comment_id}", **one)
    await walk("PATCH", "issues/comments/{comment_id}", {"body": "never mind"}, **one)
    await walk("DELETE", "issues/comments/{comment_id}", status=204, **one)
    await walk("GET", "issues/comments/{comment_id}", status=404, **one)
    await walk("POST", "issues/{issue_number}/labels", {"labels": ["automerge"]}, **number)
    await walk("GET", "issues/{issue_number}", **number)
    world = walk.there.world
    world.review(REPO, pull["number"], "octocat", "APPROVE", "fine")
    await walk("GET", "pulls/{pull_number}/reviews", **number)
    await walk("POST", "pulls/{pull_number}/reviews", {"event": "COMMENT", "body": "hm"}, **number)
    await walk("GET", "pulls/{pull_number}/merge", status=404, **number)
    world.write_files(REPO, "main", {"other.txt": b"1\n"}, "Other", "octocat")
    await walk.there.pass_time(10)
    await walk("PUT", "pulls/{pull_number}/update-branch", {}, 202, **number)
    await walk.there.pass_time(30)
    await walk("PUT", "pulls/{pull_number}/update-branch", {}, 422, **number)
    await walk("PUT", "pulls/{pull_number}/merge", {"sha": "0" * 40}, 409, **number)
    await walk("PUT", "pulls/{pull_number}/merge", {}, 200, **number)
    await walk("PUT", "pulls/{pull_number}/merge", {}, 405, **number)
    await walk("GET", "pulls/{pull_number}/merge", status=204, **number)
    await walk("GET", "pulls/{pull_number}", **number)


async def _checks(walk: Walk) -> None:
    await walk.there.pull("fix/checks")
    sha = walk.there.world.ref(REPO, "refs/heads/fix/checks")
    app: dict[str, Any] = {"as_whom": "installation"}
    suite = await walk("POST", "check-suites", {"head_sha": sha}, 201, **app)
    await walk("POST", "check-suites", {"head_sha": sha}, 200, **app)
    run = await walk("POST", "check-runs", {"head_sha": sha, "name": "lint"}, 201, **app)
    end = {"conclusion": "failure", "output": {"title": "No", "summary": "bad"}}
    ids = {"check_run_id": run["id"], "check_suite_id": suite["id"]}
    await walk("GET", "check-suites/{check_suite_id}", **ids)
    await walk("PATCH", "check-runs/{check_run_id}", end, **ids, **app)
    await walk("GET", "check-runs/{check_run_id}", **ids)
    await walk("GET", "check-suites/{check_suite_id}/check-runs", **ids)
    await walk("GET", "commits/{ref}/check-runs", ref=sha)
    await walk("GET", "commits/{ref}/check-suites", ref="fix/checks")
    await walk("POST", "check-runs/{check_run_id}/rerequest", status=201, **ids, **app)
    await walk("POST", "check-suites/{check_suite_id}/rerequest", status=201, **ids, **app)
    status = {"state": "pending", "context": "ci", "target_url": "https://ci.example.test/1"}
    await walk("GET", "commits/{ref}/status", ref=sha)
    await walk("POST", "statuses/{sha}", status, 201, sha=sha)
    await walk("GET", "commits/{ref}/status", ref=sha)
    await walk("GET", "commits/{ref}/statuses", ref=sha)


async def _workflows(walk: Walk) -> None:
    world = walk.there.world
    sha = world.ref(REPO, "refs/heads/fix/checks")
    run = world.start_workflow(REPO, sha, "build", ["unit", "lint"], "octocat")
    one = {"run_id": run.id}
    await walk("GET", "actions/runs", query={"head_sha": sha})
    await walk("GET", "actions/runs/{run_id}", **one)
    for job, end in zip(world.jobs(REPO, run.id), ("failure", "success"), strict=True):
        world.begin_job(REPO, job.id)
        world.finish_job(REPO, job.id, end, "log\n")  # type: ignore[arg-type]
    jobs = await walk("GET", "actions/runs/{run_id}/jobs", **one)
    assert {job["conclusion"] for job in jobs["jobs"]} == {"failure", "success"}
    await walk("POST", "actions/runs/{run_id}/rerun-failed-jobs", status=201, **one)
    await walk.there.pass_time(60)
    await walk("POST", "actions/runs/{run_id}/cancel", status=202, **one)
    await walk("POST", "actions/runs/{run_id}/rerun", status=201, **one)
    await walk.there.pass_time(60)
    for job in world.jobs(REPO, run.id):
        world.finish_job(REPO, job.id, "failure", "log\n")
    job_id = world.jobs(REPO, run.id)[0].id
    await walk("POST", "actions/jobs/{job_id}/rerun", status=201, job_id=job_id)
    await walk("GET", "actions/runs/{run_id}", **one)


async def _hooks(walk: Walk) -> None:
    config = {"url": "http://127.0.0.1:9/hook", "content_type": "json", "secret": "s"}
    hook = await walk("POST", "hooks", {"config": config, "events": ["push"]}, 201)
    await walk("POST", "hooks", {"config": config, "events": ["push"]}, 422)
    walk.there.sim.add_app_hook("http://127.0.0.1:9/app")
    walk.there.world.write_files(REPO, "main", {"b.txt": b"1\n"}, "B", "octocat")
    await walk.there.sim.settle()
    await walk("GET", "hooks")
    items = await walk("GET", "hooks/{hook_id}/deliveries", hook_id=hook["id"])
    ids = {"hook_id": hook["id"], "delivery_id": items[0]["id"]}
    await walk("POST", "hooks/{hook_id}/deliveries/{delivery_id}/attempts", status=202, **ids)
    items = await walk("GET", "/app/hook/deliveries", as_whom="app")
    path = "/app/hook/deliveries/{delivery_id}/attempts"
    await walk("POST", path, status=202, delivery_id=items[0]["id"], as_whom="app")


async def test_all_operations(walk: Walk) -> None:
    """A walk over everything: status and body of each answer are valid, refusals included."""
    await walk.sign_in_as_app()
    for part in (_repository, _git, _pulls, _checks, _workflows, _hooks):
        await part(walk)
    assert sorted(set(openapi.operations()) - walk.seen) == []


@pytest.mark.parametrize(("method", "path"), openapi.operations() or [("GET", "/user")])
def test_each_has_a_route(method: str, path: str) -> None:
    """Nothing that GitHub describes here is unknown to the simulator."""
    real = path.replace("{", "").replace("}", "")
    assert ROUTES.find(method, real) is not None
