"""Where the storm takes place: servers, the proxies before them, and processes that are kept up.

Two `towline serve` and two `towline worker` share a PostgreSQL, a Redis and a forge, each behind a
proxy. A third `towline serve` lives by itself, on SQLite and on a disk that is soon full.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.chaos.small_disk import SmallDisk
from tests.chaos.town import OURS, Town
from tests.e2e.ledger import settings_for
from tests.e2e.programs import Program
from tests.fault_proxy import FaultProxy
from tests.hook_world import TOKEN, served
from tests.servers import PostgresServer, RedisServer, at_port, create_database
from towline_sim.actors.scenario import AUTHOR

LEASE_SECONDS = 3.0
_GLANCE = 0.2
_ASKS_EVERY = 1.5
_MOST_QUESTIONS = 450
_DATABASE = "chaos"


class Kept:
    """A process that is started again whenever it has ended, as an init system does it."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.hands_on = asyncio.Lock()
        """Held by whoever does something to it."""
        self.closing = False
        self.struck = True
        """Its end was our doing, or it has not begun yet."""
        self.ended_alone: list[str] = []
        self.naps: list[tuple[float, float]] = []
        """When it was frozen, and until when."""

    @property
    def is_up(self) -> bool:
        """Nobody can tell of a worker from outside; one that runs has to do."""
        program = self.program
        return program.running and (program.listening or self.name.startswith("worker"))

    async def keep(self) -> None:
        while not self.closing:
            async with self.hands_on:
                if not self.program.running and not self.closing:
                    await self._start_again()
            await asyncio.sleep(_GLANCE)

    async def _start_again(self) -> None:
        if not self.struck:
            self.ended_alone.append("".join(self.program.output[-20:]))
        self.struck = False
        with suppress(AssertionError):  # it ended again: that is looked at next time
            await asyncio.to_thread(self.program.start)

    async def stop(self) -> int:
        """The exit code of a gentle end."""
        self.closing = True
        async with self.hands_on:
            self.program.thaw()
            return await asyncio.to_thread(self.program.stop)


@contextmanager
def ended_at_last(one: Kept) -> Iterator[Kept]:
    """No process outlives the run, whatever became of it."""
    try:
        yield one
    finally:
        one.closing = True
        if one.program.running:
            one.program.kill()


@dataclass
class World:
    seed: int
    folder: Path
    town: Town
    postgres: PostgresServer
    redis: RedisServer
    database_url: str
    """Straight to the server, as the others that follow."""
    small_url: str
    proxies: dict[str, FaultProxy]
    disk: SmallDisk
    doors: list[Kept] = field(default_factory=list)
    hands: list[Kept] = field(default_factory=list)
    cottage: list[Kept] = field(default_factory=list)
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def kept(self) -> list[Kept]:
        return [*self.doors, *self.hands, *self.cottage]

    def ports(self, kept: list[Kept]) -> list[int]:
        return [one.program.port for one in kept]

    def far(self, name: str, url: str) -> str:
        """The same by way of its proxy."""
        return at_port(url, self.proxies[name].port)


def _shared_settings(world: World, forge_url: str, state: str) -> dict[str, str]:
    return settings_for(world.far("postgres", world.database_url)) | {
        "TOWLINE_ENGINE": "celery",
        "TOWLINE_REDIS_URL": world.far("redis", world.redis.url),
        "TOWLINE_STATE_BACKEND": state,
        "TOWLINE_STORE_TIMEOUT_SECONDS": "3",
        "TOWLINE_WORKER__LEASE_SECONDS": str(LEASE_SECONDS),
        "TOWLINE_WORKER__CONCURRENCY": "16",
        "TOWLINE_WORKER__DRAIN_SECONDS": "5",
        "TOWLINE_PIPELINE__BASE_BACKOFF_SECONDS": "0.5",
        "TOWLINE_PIPELINE__MAX_BACKOFF_SECONDS": "4",
        "TOWLINE_GITHUB__API_URL": forge_url,
        "TOWLINE_GITHUB__TOKEN": TOKEN,
        "TOWLINE_TOW__AUTHORS": json.dumps([AUTHOR]),
        "TOWLINE_TOW__OWN_LOGINS": json.dumps([OURS]),
        "TOWLINE_RECONCILER__OBSERVE_ONLY": "true",
    }


def _small_settings(world: World) -> dict[str, str]:
    return settings_for(world.small_url) | {
        "TOWLINE_STORE_TIMEOUT_SECONDS": "3",
        "TOWLINE_WORKER__LEASE_SECONDS": str(LEASE_SECONDS),
        "TOWLINE_AUDIT__FILE": str(world.disk.folder / "audit.log"),
    }


@asynccontextmanager
async def world_of(seed: int, folder: Path, seconds: float) -> AsyncIterator[World]:
    """Servers and proxies that run; the processes of Towline are ready to be started.

    It is large enough for a storm of so many seconds.
    """
    dice = random.Random(f"world {seed}")
    asks_every = max(_ASKS_EVERY, seconds / _MOST_QUESTIONS)
    town = Town(random.Random(f"town {seed}"), asks_every)
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(PostgresServer())
        redis = stack.enter_context(RedisServer())
        forge_url = await stack.enter_async_context(served(town.sim))
        stack.push_async_callback(town.sim.aclose)
        addresses = {
            "postgres": (postgres.host, postgres.port),
            "redis": (redis.host, redis.port),
            "forge": ("127.0.0.1", urlsplit(forge_url).port or 0),
        }
        proxies = {
            name: await stack.enter_async_context(FaultProxy(*address))
            for name, address in addresses.items()
        }
        disk = stack.enter_context(SmallDisk(folder / "small", 32 + int(seconds / 30)))
        database_url = create_database(postgres.url, _DATABASE)
        small_url = f"sqlite:///{disk.folder / 'towline.db'}"
        world = World(seed, folder, town, postgres, redis, database_url, small_url, proxies, disk)
        shared = _shared_settings(
            world, world.far("forge", forge_url), dice.choice(["sql", "redis"])
        )
        for place, command, settings, names in (
            (world.doors, "serve", shared, ["serve-1", "serve-2"]),
            (world.hands, "worker", shared, ["worker-1", "worker-2"]),
            (world.cottage, "serve", _small_settings(world), ["cottage"]),
        ):
            for name in names:
                program = Program(folder, settings, command, log=folder / f"{name}.log")
                place.append(stack.enter_context(ended_at_last(Kept(name, program))))
        yield world
