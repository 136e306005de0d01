"""The fix pipeline of a running service: what breaks in the town, and what is seen of its runs."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.tow_over_http import OURS, REPO, Place
from tests.hook_world import SECRET, TOKEN
from tests.http.asgi_client import DEADLINE
from towline.app.tow import Outside
from towline.forges.base import NewPull, Opened
from towline.forges.github.forge import GitHubForge
from towline_sim.actors.scenario import AUTHOR
from towline_sim.github.webhooks import headers_of, target_of

TOW = "tow"
KEY = "towline-key-of-the-tests"
SOURCE = "src/app.py"
BROKEN = b"import os\n\nprint('hello')\n"
LOG = f"{SOURCE}:1:8: F401 [*] `os` imported but unused\nFound 1 error.\n"
SHELL = "/bin/sh"


def fixing(folder: Path, *repos: str, script: str | None = None, **more: Any) -> dict[str, Any]:
    """Settings of a service that fixes these; `script` is what its coding agent does."""
    fix: dict[str, Any] = {
        "repos": list(repos or (REPO,)),
        "fixers": ["ruff", "bump"],
        "labels": [TOW],
        "folder": str(folder / "work"),
    }
    if script is not None:
        agent = {"argv": [SHELL, "-c", script], "name": "agent", "seconds": 60}
        fix |= {"fixers": ["command"], "agent": agent}
    tow = {"authors": [AUTHOR], "labels": [TOW], "own_logins": [OURS]}
    return {"tow": tow, "fix": fix | more}


def break_it(place: Place, repo: str = REPO) -> None:
    """Somebody pushes to main what the linter complains about."""
    place.town.world.write_files(repo, "main", {SOURCE: BROKEN}, "Break it", AUTHOR)


def fail_lint(place: Place, repo: str = REPO, *, name: str = "lint", log: str = LOG) -> None:
    """The lint job fails on main, and GitHub tells of it."""
    world = place.town.world
    run = world.start_workflow(repo, world.branch(repo, "main"), "ci", [name], AUTHOR, event="push")
    (job,) = world.jobs(repo, run.id)
    world.begin_job(repo, job.id)
    world.finish_job(repo, job.id, "failure", log)


async def alert(
    place: Place, package: str, fixed: str, vulnerability: str = "CVE-2024-2002"
) -> int:
    """Dependabot tells of a vulnerable dependency; what the service answers."""
    told = {
        "action": "created",
        "alert": {
            "number": 1,
            "state": "open",
            "html_url": f"https://github.example/{REPO}/security/dependabot/1",
            "security_advisory": {"cve_id": vulnerability, "summary": "It can be made to stop."},
            "security_vulnerability": {
                "package": {"ecosystem": "pip", "name": package},
                "severity": "high",
                "vulnerable_version_range": f"< {fixed}",
                "first_patched_version": {"identifier": fixed},
            },
        },
        "repository": {"full_name": REPO, "default_branch": "main"},
        "sender": {"login": "github", "type": "Organization"},
    }
    (hook,) = place.town.world.hooks(REPO)
    body = json.dumps(told).encode()
    target = target_of(hook, place.town.world.repo(REPO).id)
    headers = headers_of(target, str(uuid.uuid4()), "dependabot_alert", body)
    answer = await place.tow.client.post("/webhooks/github", content=body, headers=headers)
    await place.quiet()
    return answer.status_code


async def tell_again(place: Place, *events: str, repo: str = REPO) -> int:
    """Redeliver what was told of these events; how many deliveries that are."""
    webhooks, again = place.sim.webhooks, 0
    for hook in place.town.world.hooks(repo):
        target = target_of(hook, place.town.world.repo(repo).id)
        for delivery in list(webhooks.log(hook.id)):
            if delivery.event in events and not delivery.redelivery:
                webhooks.redeliver(target, delivery)
                again += 1
    await place.quiet()
    return again


async def runs_of(place: Place, repo: str = REPO) -> list[Any]:
    """The newest first."""
    items: list[Any] = (await place.tow.get(f"/api/runs?repo={repo}"))["items"]
    return items


async def the_run(place: Place, repo: str = REPO) -> Any:
    """The only one of the repository, with everything that is known of it."""
    (run,) = await runs_of(place, repo)
    return await place.tow.get(f"/api/runs/{run['run_key']}")


def outcomes(run: Mapping[str, Any]) -> dict[str, str]:
    return {stage["stage"]: stage["outcome"] for stage in run["stages"]}


def our_branches(place: Place, repo: str = REPO) -> list[str]:
    prefix = "refs/heads/"
    refs: Iterable[str] = place.town.world.refs(repo)
    return [ref.removeprefix(prefix) for ref in refs if ref.startswith(f"{prefix}towline/")]


def proposals(place: Place, repo: str = REPO) -> list[int]:
    """The pull requests that Towline opened, whatever became of them."""
    pulls = place.town.world.pulls(repo, state="all")
    return sorted(pull.number for pull in pulls if pull.author.login == OURS)


def text_at(place: Place, rev: str, path: str, repo: str = REPO) -> str:
    world = place.town.world
    return world.objects.content(world.files(repo, rev)[path]).decode()


def asked_to_open(place: Place, repo: str = REPO) -> int:
    """How often somebody asked over HTTP for a new pull request."""
    path = f"/repos/{repo}/pulls"
    return sum(one.method == "POST" and one.path == path for one in place.sim.asked)


def writes_to(place: Place, repo: str = REPO) -> list[str]:
    """What git asked for to push, in order; a push is a look at the branches and the pack."""
    service = "git-receive-pack"
    looks, packs = f"/{repo}.git/info/refs", f"/{repo}.git/{service}"
    return [
        one.method
        for one in place.sim.asked
        if one.status == 200
        and (one.path == packs or (one.path == looks and one.query.get("service") == service))
    ]


def as_environment(place: Place, tables: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a process of its own, as variables."""
    given: dict[str, Any] = {
        "github": {"api_url": place.forge_url, "token": TOKEN, "webhook_secrets": [SECRET]},
        "api_keys": {"ops": {"key": KEY, "scopes": ["read"]}},
        "worker": {"lease_seconds": 2},
    }
    named = {f"TOWLINE_{name.upper()}": json.dumps(table) for name, table in given.items()}
    named |= {f"TOWLINE_{name.upper()}": json.dumps(table) for name, table in tables.items()}
    return {**named, "TOWLINE_DATABASE_URL": place.database_url}


def hook_up(place: Place, url: str) -> None:
    for repo in place.town.world.repos():
        place.town.world.create_hook(
            repo.full_name, f"{url}/webhooks/github", secret=SECRET, events=["*"]
        )


@dataclass
class HeldPlace(Place):
    """Who opens a pull request in `held_repo` waits until they are let go."""

    held_repo: str = ""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def outside(self) -> Outside:
        made = super().outside()
        forge = HeldForge(self.forge_url, self.clock, token=TOKEN, sleep=self.nap)
        forge.place = self
        return Outside({"github": forge}, made.ci, None, self.nap)


class HeldForge(GitHubForge):
    place: HeldPlace

    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        if new.repo == self.place.held_repo:
            self.place.reached.set()
            async with asyncio.timeout(DEADLINE):
                await self.place.let_go.wait()
        return await super().open_pull(new, still)
