"""The whole tow over real HTTP: a town's forge, its Jenkins, whoever is notified, and services.

One clock is moved by hand for all of them. Whatever would sleep moves it instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import apprise
import httpx2

from tests.clocks import ManualClock
from tests.hook_world import SECRET, TOKEN
from tests.hook_world import served as forge_served
from tests.http.front_door import served, until
from tests.sim.github_server import Receiver
from towline.app.service import Service
from towline.app.tow import Outside
from towline.app.web import apps_of
from towline.cli.serve import guarded
from towline.config import Settings
from towline.forges.github.forge import GitHubForge
from towline.integrations.jenkins.ci import JenkinsCi
from towline.jobs.model import OWN_QUEUE, JobRecord
from towline_sim.actors.scenario import AUTHOR, JENKINS, JOBS, POLICY, Customs, Town
from towline_sim.github.entities import Pull
from towline_sim.github.limits import Limits
from towline_sim.github.server import GitHubSim
from towline_sim.jenkins import JenkinsSim, JenkinsWorld, SimBuild

REPO = "octo-org/app"
OURS = "towline-bot"
JOB = "fleet/app"
JENKINS_USER, JENKINS_TOKEN = "towline", "11simulated0token"
MINUTE, HOUR = 60.0, 3600.0
REBUILD_IN_ACTIONS = {"kind": "rerun_failed"}
REBUILD_IN_JENKINS = {"kind": "jenkins", "job": JOB}
BOTS: dict[str, Any] = {
    "rebuild": REBUILD_IN_JENKINS,
    "policy": {"kind": "label", "label": "recheck-policy"},
    "sod": {"kind": "dispatch", "event_type": "policy"},
    "approver": {"kind": "status", "context": POLICY},
    "merge": {"kind": "label", "label": "automerge"},
}
_PARAMETERS = ("REPO", "SHA", "PR_NUMBER", "TOWLINE_INTENT")
_LEAST_STEP = 1.0
_HELD_SECONDS = 5.0

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # apprise's, when it loads its plugins
    apprise.Apprise().add("json://localhost")


async def _at_once() -> None:
    return None


@dataclass
class People(Receiver):
    """Whoever is notified; a message is answered after `hold`."""

    status: int = 200
    hold: Callable[[], Awaitable[None]] = _at_once

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            await self.hold()
            await send(message)

        await super().__call__(scope, receive, answer)


class SweptByHand(Service):
    """Works, and sweeps only when it is asked to."""

    def start(self, *, serving: bool = False) -> None:
        self._worker = self._make_worker()
        self._keep(self._worker.run())


@dataclass
class Served:
    """A service behind its server, and somebody who has its key."""

    service: Service
    client: httpx2.AsyncClient
    url: str

    async def get(self, path: str) -> Any:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def status(self, number: int, repo: str = REPO) -> Any:
        return await self.get(f"/api/pr/{repo}/{number}/status")

    async def status_if_known(self, number: int) -> Any:
        answer = await self.client.get(f"/api/pr/{REPO}/{number}/status")
        return None if answer.status_code == 404 else answer.json()

    async def sweep(self, *, dry_run: bool = False) -> Any:
        return await self.post("/api/reconciler/run" + ("?dry_run=true" if dry_run else ""))

    async def order(self, number: int, command: str, repo: str = REPO) -> Any:
        return await self.post(f"/api/pr/{repo}/{number}/command", {"command": command}, 202)

    async def jobs(self, kind: str) -> list[JobRecord]:
        """Oldest first."""
        found = await self.service.jobs.listing(None, "", 10_000)
        return [job for job in reversed(found) if job.kind == kind]


@dataclass
class Place:
    """Everything that there is. The first service is whom tests talk to."""

    clock: ManualClock
    town: Town
    sim: GitHubSim
    forge_url: str
    jenkins: JenkinsSim
    jenkins_url: str
    people: People
    people_url: str
    database_url: str
    key: str = ""
    services: list[Served] = field(default_factory=list)

    # ------------------------------------------------------------------ services

    @property
    def tow(self) -> Served:
        return self.services[0]

    def settings(self, **tables: Any) -> Settings:
        triggers = BOTS | tables.pop("triggers", {})
        given: dict[str, Any] = {
            "database_url": self.database_url,
            "github": {
                "api_url": self.forge_url, "token": TOKEN, "webhook_secrets": [SECRET],
            },
            "jenkins": {"url": self.jenkins_url, "user": JENKINS_USER, "token": JENKINS_TOKEN},
            "tow": {"authors": [AUTHOR], "own_logins": [OURS]},
            "signals": {"required": [*JOBS, JENKINS], "policy_checks": [POLICY]},
            "triggers": triggers,
            "notify": {"urls": [self.people_url.replace("http://", "json://")]},
        }  # fmt: skip
        return Settings.model_validate(given | tables)

    def outside(self) -> Outside:
        forge = GitHubForge(self.forge_url, self.clock, token=TOKEN, sleep=self.nap)
        ci = JenkinsCi(
            self.jenkins_url, self.clock, user=JENKINS_USER, token=JENKINS_TOKEN, deadline_seconds=5
        )
        return Outside({"github": forge}, ci, None, self.nap)

    async def nap(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def serving(
        self, *, by_hand: bool = True, hears: bool = True, **tables: Any
    ) -> AsyncIterator[Served]:
        """One more service over the same database; `hears` if the town sends it webhooks."""
        made = (SweptByHand if by_hand else Service)(
            self.settings(**tables), clock=self.clock, outside=self.outside()
        )
        try:
            await made.open()
            made.start()
            async with served(apps_of(made)[0], guarded(made)) as (port, client):
                self.key = await made.keyring.ensure_one() or self.key
                client.headers["x-api-key"] = self.key
                one = Served(made, client, f"http://127.0.0.1:{port}")
                self.services.append(one)
                if hears:
                    self._hook(one)
                try:
                    yield one
                finally:
                    self._unhook(one)
            assert made.failures() == []
        finally:
            await made.close()

    def _hook(self, one: Served) -> None:
        for repo in self.town.world.repos():
            url = f"{one.url}/webhooks/github"
            self.town.world.create_hook(repo.full_name, url, secret=SECRET, events=["*"])

    def _unhook(self, one: Served) -> None:
        self.services.remove(one)
        for repo in self.town.world.repos():
            for hook in self.town.world.hooks(repo.full_name):
                if hook.url.startswith(one.url):
                    self.town.world.delete_hook(repo.full_name, hook.id)

    # ------------------------------------------------------------------ time

    async def pass_time(self, seconds: float) -> None:
        """Step from one thing that is due to the next, and let each be dealt with."""
        end_us = self.clock.now_us() + int(seconds * 1e6)
        await self.quiet()
        while (left := (end_us - self.clock.now_us()) / 1e6) > 0:
            self.clock.advance(min(left, max(_LEAST_STEP, await self._next_due())))
            await self.quiet()

    async def _next_due(self) -> float:
        now = self.clock.now_us() / 1e6
        due = [self.town.world.next_due(), self.sim.webhooks.next_due()]
        build_us = self.jenkins.world.next_due_us()
        due.append(None if build_us is None else build_us / 1e6)
        if self.services:
            job = await self.tow.service.jobs.due_in((OWN_QUEUE,))
            due.append(None if job is None else now + job)
        return min((at - now for at in due if at is not None), default=HOUR)

    async def quiet(self) -> None:
        """Until all that is due was told and answered, and no job runs or is due."""
        await until(self._is_quiet, "all is quiet")

    async def _is_quiet(self) -> bool:
        asked = len(self.sim.asked)
        self.jenkins.world.settle()
        await self.sim.settle()
        if not self.services:
            return True
        jobs = self.tow.service.jobs
        before = await jobs.depth(OWN_QUEUE)
        due = await jobs.due_in((OWN_QUEUE,))
        if due is not None and 0 < due <= _HELD_SECONDS:
            await asyncio.sleep(0.02)  # one that waits for a slot may be about to be called back
            due = await jobs.due_in((OWN_QUEUE,))
        if due is not None and due <= 0:
            self.tow.service.bell.ring()
            return False
        after = await jobs.depth(OWN_QUEUE)
        return before == after and not after.running and len(self.sim.asked) == asked

    async def until(self, number: int, *states: str, within: float = HOUR) -> Any:
        """Let time pass until the pull request is in one of these states; its status then.

        It may be unknown at first: a delivery whose job met a stalled disk is tried again later.
        """
        end_us = self.clock.now_us() + int(within * 1e6)
        while True:
            await self.quiet()
            seen = await self.tow.status_if_known(number)
            if seen is not None and seen["state"] in states:
                return seen
            left = (end_us - self.clock.now_us()) / 1e6
            found = f"{seen['state']} {told(seen)}" if seen is not None else "not known"
            assert left > 0, f"in {within:g} s it was not {states}: {found}"
            self.clock.advance(min(left, max(_LEAST_STEP, await self._next_due())))

    # ------------------------------------------------------------------ the world

    async def open_fix(self, key: str, **more: Any) -> Pull:
        pull = self.town.open_fix(key, **more)
        await self.quiet()
        return pull

    def pull(self, number: int, repo: str = REPO) -> Pull:
        return self.town.world.pull(repo, number)

    def comments(self, number: int, by: str = OURS) -> list[str]:
        said = self.town.world.comments(REPO, number)
        return [one.body for one in said if one.author.login == by]

    def notices(self) -> list[Mapping[str, Any]]:
        """What people were told, by title and message."""
        return [json.loads(one.body) for one in self.people.taken]

    def asked_to_build(self) -> list[str]:
        """The pull requests that Jenkins was asked over HTTP to build, in order."""
        return [item.parameters["PR_NUMBER"] for item in self.jenkins.world.items.values()]


def told(status: Mapping[str, Any], *, every: bool = False) -> list[str]:
    """The types of its events; repeats of what was known are left out."""
    return [
        event["event_type"]
        for event in status["events"]
        if every or not event["payload"].get("repeated")
    ]


def of_type(status: Mapping[str, Any], *types: str) -> list[Mapping[str, Any]]:
    return [event for event in status["events"] if event["event_type"] in types]


def used(status: Mapping[str, Any]) -> dict[str, int]:
    """The budgets that something was spent of."""
    counts: Iterable[tuple[str, Any]] = status["retry_counts"].items()
    return {strategy: tries["used"] for strategy, tries in counts if tries["used"]}


@contextlib.asynccontextmanager
async def place_on(
    database_url: str, customs: Customs | None = None, *, ahead: float = 0.0
) -> AsyncIterator[Place]:
    """A town over HTTP, without a service yet; its time is so many seconds ahead of ours."""
    clock = ManualClock()
    clock.advance(ahead)
    town = Town(customs=customs, now=clock.now_us() / 1e6)
    sim = GitHubSim(town.world, clock, TOKEN, login=OURS, limits=Limits.none())

    def report(build: SimBuild) -> None:
        """As Jenkins tells GitHub of a build's end."""
        state: Any = "success" if build.result == "SUCCESS" else "failure"
        given = build.parameters
        words = "Build finished" if state == "success" else build.log.strip()[-100:]
        town.world.run_until(clock.now_us() / 1e6)
        town.world.set_status(
            given["REPO"], given["SHA"], JENKINS, state, "jenkins[bot]", description=words
        )

    builds = JenkinsWorld(clock, on_end=report)
    builds.add_job(JOB, *_PARAMETERS, duration_seconds=90)
    jenkins = JenkinsSim(builds, user=JENKINS_USER, token=JENKINS_TOKEN)
    people = People()
    try:
        async with (
            forge_served(sim) as forge_url,
            forge_served(jenkins) as jenkins_url,
            forge_served(people) as people_url,
        ):
            yield Place(
                clock, town, sim, forge_url, jenkins, jenkins_url, people, people_url, database_url
            )
    finally:
        await sim.aclose()


@contextlib.asynccontextmanager
async def towing(
    database_url: str, customs: Customs | None = None, **tables: Any
) -> AsyncIterator[Place]:
    """A town, and one service that tows there."""
    async with place_on(database_url, customs) as place, place.serving(**tables):
        yield place
