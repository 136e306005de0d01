"""Everything that a demo runs, in one process: the real service, and a world to tow in.

The world's GitHub and Jenkins are served over real HTTP on this machine, and its webhooks are
signed. The service knows nothing of the demo but its settings, and a clock that goes faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import uvicorn

from towline.app.service import Service
from towline.app.tow import Outside
from towline.app.web import apps_of
from towline.cli.serve import bound, guarded, server_of
from towline.config import Settings
from towline.dashboard.demo_controls import ENTER
from towline.fix.starter import FIX
from towline.forges.github.forge import GitHubForge
from towline.forges.github.rate_limit import Limits as Pace
from towline.integrations.jenkins.ci import JenkinsCi
from towline.jobs.model import Claimed
from towline_once.asgi.messages import App
from towline_once.clock import SystemClock
from towline_sim.actors.scenario import AUTHOR, JENKINS, JOBS, POLICY
from towline_sim.demo.clock import DemoClock
from towline_sim.demo.controls import Levers
from towline_sim.demo.sights import Scenes
from towline_sim.demo.world import JOB, REPOS, DemoWorld
from towline_sim.github.limits import Limits
from towline_sim.github.server import GitHubSim
from towline_sim.http import simulator_server
from towline_sim.jenkins import JenkinsSim

HOST: Final = "127.0.0.1"


# -------------------------------------------------------------- demo_stage

OWN_LOGIN: Final = "towline-bot"
TICK_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.5
_JENKINS_USER: Final = "towline"
_A_MINUTE: Final = 60.0
_LONGEST_LEASE: Final = 36_000
_PACE: Final = Pace(10**6, 10**5, 10**6, 0.0)
_LIMITS: Final = Limits(writes_per_minute=10_000, writes_per_hour=100_000)
"""GitHub's own hourly budget holds; what it says of bursts means a person's seconds."""
_HOOK_LOG: Final = 500
"""Deliveries kept for each repository: recovery reads this log every few seconds."""
_STALE: Final = {
    "created": 5, "checks_running": 25, "checks_passed": 6, "checks_failed": 5,
    "policy_evaluating": 6, "policy_passed": 5, "policy_failed": 5, "approved": 5, "merging": 4,
}  # fmt: skip
"""In minutes of the demo: shorter than usual, so that one need not wait for it."""
_BOTS: Final = {
    "rebuild": {"kind": "jenkins", "job": JOB},
    "policy": {"kind": "label", "label": "recheck-policy"},
    "sod": {"kind": "dispatch", "event_type": "policy"},
    "approver": {"kind": "status", "context": POLICY},
    "merge": {"kind": "label", "label": "automerge"},
}


@dataclass
class Demo:
    """A demo that runs; `link` signs in, `key` is for the API and the command line."""

    service: Service
    scenes: Scenes
    levers: Levers
    clock: DemoClock
    url: str
    ended: asyncio.Task[None]
    """It only ends when something went wrong."""

    @property
    def link(self) -> str:
        return f"{self.url}{ENTER}/{self.levers.code}"

    @property
    def key(self) -> str:
        return self.levers.key


@asynccontextmanager
async def demo_in(
    folder: Path, listening: socket.socket, speed: float, seed: int = 0
) -> AsyncIterator[Demo]:
    """Runs in this folder, and answers on this socket, until the body ends."""
    clock = DemoClock(SystemClock(), speed)
    world = DemoWorld(clock, seed)
    token = f"ghp_{secrets.token_hex(18)}"
    async with AsyncExitStack() as stack:
        sim = GitHubSim(
            world.world, clock, token, login=OWN_LOGIN, limits=_LIMITS, fates=world.hooks
        )
        sim.webhooks.most_kept = _HOOK_LOG
        stack.push_async_callback(sim.aclose)
        jenkins = JenkinsSim(world.builds, user=_JENKINS_USER, token=token)
        forge_url = await stack.enter_async_context(_served(sim))
        jenkins_url = await stack.enter_async_context(_served(jenkins))
        url = _address(listening)
        secret = secrets.token_hex(16)
        hooks = [
            world.world.create_hook(name, f"{url}/webhooks/github", secret=secret, events=["*"])
            for name in REPOS
        ]
        settings = _settings(folder, forge_url, jenkins_url, token, secret, clock)
        watched = tuple(f"{hook.repo}:{hook.id}" for hook in hooks)
        github = settings.github.model_copy(update={"hooks": watched})
        service = Service(
            settings.model_copy(update={"github": github}),
            clock=clock,
            visitors_clock=SystemClock(),
            outside=_outside(forge_url, jenkins_url, token, clock),
            handlers={FIX: _proposer(world)},
        )
        scenes = Scenes(service)
        levers = Levers(clock, world, sim, scenes)
        stack.push_async_callback(service.close)
        await service.open()
        levers.key = await service.keyring.ensure_one() or ""
        service.start(serving=True)
        app = apps_of(service, levers)[0]
        server = server_of(app, guarded(service))
        await stack.enter_async_context(_running(server, listening, service.farewell.say))
        world.begin()
        scenes.begin()
        world.trips = lambda: scenes.trips
        driver = asyncio.create_task(_drive(world, sim, jenkins))
        stack.push_async_callback(_cancelled, driver)
        looker = asyncio.create_task(_look_on(service, scenes))
        stack.push_async_callback(_cancelled, looker)
        ended = asyncio.create_task(_first_trouble(driver, looker))
        stack.push_async_callback(_cancelled, ended)
        yield Demo(service, scenes, levers, clock, url, ended)


def _settings(
    folder: Path, forge_url: str, jenkins_url: str, token: str, secret: str, clock: DemoClock
) -> Settings:
    """Chores and polls wait in real seconds: the faster the demo, the more often they come."""

    def real(demo_seconds: float, least: float, most: float) -> float:
        return min(max(demo_seconds / clock.usual, least), most)

    given: dict[str, Any] = {
        "database_url": f"sqlite:///{folder / 'towline.db'}",
        "github": {
            "api_url": forge_url, "token": token, "webhook_secrets": [secret],
            "recovery_seconds": real(480, 1.0, 30.0),
        },
        "jenkins": {"url": jenkins_url, "user": _JENKINS_USER, "token": token},
        "tow": {"authors": [AUTHOR], "own_logins": [OWN_LOGIN], "repos": list(REPOS)},
        "signals": {"required": [*JOBS, JENKINS], "policy_checks": [POLICY]},
        "triggers": _BOTS,
        "staleness": {state: minutes * _A_MINUTE for state, minutes in _STALE.items()},
        "reconciler": {
            "every_seconds": real(150, 0.5, 10.0), "discover_seconds": real(900, 2.0, 60.0),
        },
        "pipeline": {"repo_concurrency": 10},
        "worker": {"lease_seconds": _LONGEST_LEASE, "drain_seconds": 3},
        "audit": {"file": folder / "audit.jsonl"},
    }  # fmt: skip
    return Settings.model_validate(given)


def _outside(forge_url: str, jenkins_url: str, token: str, clock: DemoClock) -> Outside:
    forge = GitHubForge(forge_url, clock, token=token, limits=_PACE, sleep=clock.sleep)
    ci = JenkinsCi(jenkins_url, clock, user=_JENKINS_USER, token=token)
    return Outside({"github": forge}, ci, None, clock.sleep)


def _proposer(world: DemoWorld) -> Any:
    """There is no fix pipeline here: the bot that made the bump is asked for a fresh one."""

    async def propose(job: Claimed) -> object:
        asked = orjson.loads(job.params or "{}")
        anew = world.again(str(asked["repo"]), int(asked["replaces"]))
        return {"status": "proposed anew" if anew else "not known to the bot"}

    return propose


# ---------------------------------------------------------------------- what runs beside it


async def _drive(world: DemoWorld, sim: GitHubSim, jenkins: JenkinsSim) -> None:
    while True:
        jenkins.outage = "unavailable" if world.jenkins_down else None
        world.builds.settle()
        sim.advance()
        await asyncio.sleep(TICK_SECONDS)


async def _look_on(service: Service, scenes: Scenes) -> None:
    while True:
        await scenes.look()
        for error in service.failures():
            raise error
        await asyncio.sleep(_LOOK_SECONDS)


async def _first_trouble(*tasks: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


@asynccontextmanager
async def _served(app: App) -> AsyncIterator[str]:
    with bound(HOST, 0) as listening:
        async with _running(simulator_server(app), listening):
            yield _address(listening)


@asynccontextmanager
async def _running(
    server: uvicorn.Server, listening: socket.socket, farewell: Any = lambda: None
) -> AsyncIterator[None]:
    serving = asyncio.create_task(_until_exit(server, listening))
    try:
        yield
    finally:
        farewell()
        server.should_exit = True
        await serving


def _until_exit(server: uvicorn.Server, listening: socket.socket) -> Coroutine[Any, Any, None]:
    return server.serve(sockets=[listening])


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{host}:{port}"
