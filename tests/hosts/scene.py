"""The course of events: a fleet at work under load, a machine cut off, another one killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import asyncpg

from tests.e2e.ledger import looking_at
from tests.e2e.senders import Crowd, Parcel, with_duplicates
from tests.hosts.balancer import Balancer
from tests.hosts.fleet import PATIENCE, Fleet, until
from tests.hosts.ledger import Ledger
from tests.hosts.load import Drip
from tests.hosts.remote import RemoteWorker

T = TypeVar("T")
STAYS, CUT_OFF, KILLED = "alder", "birch", "cedar"
HOSTS = (STAYS, CUT_OFF, KILLED)
_EACH_SECOND = 25
_BURST = 60
_KEPT_BACK = 100
_AT_ONCE = 48
_ENOUGH_IN_HAND = 5


class Times(NamedTuple):
    """By the clock of the database."""

    cut_off: float
    killed: float
    back: float


class Lateness(NamedTuple):
    """What a remote worker was told about the same job: in time elsewhere, and late."""

    in_time: int
    late: int


class Scene:
    def __init__(self, fleet: Fleet, ledger: Ledger, balancer: Balancer, crowd: Crowd) -> None:
        self.fleet = fleet
        self.ledger = ledger
        self.balancer = balancer
        self.crowd = crowd
        self.oldest_transaction = 0.0
        """While machines were lost."""

    async def gather(self) -> None:
        """The machine that will be cut off leads; all that will be lost are next in line."""
        self.fleet.start(CUT_OFF, "serve")
        await until(self.ledger.is_led, "a leader")
        for name, command in ((CUT_OFF, "worker"), (KILLED, "serve"), (KILLED, "worker")):
            self.fleet.start(name, command)
        await self._candidates(3)
        for command in ("serve", "worker"):
            self.fleet.start(STAYS, command)
        await self._candidates(5)

    async def _candidates(self, count: int) -> None:
        async def are_there() -> bool:
            return await self.ledger.candidates() >= count

        await until(are_there, f"{count} candidates")

    async def all_work(self) -> None:
        for host in HOSTS:
            await self._works(host, 0.0)

    async def _works(self, host: str, since: float) -> None:
        async def does() -> bool:
            return await self.ledger.begun(host, since) > 0

        await until(does, f"work on {host}")

    async def play(self, drip: Drip) -> tuple[Times, Lateness]:
        door = f"http://{self.fleet.network.hub.address}:{self.balancer.port}"
        machines = self.fleet.network.machines
        lost, heir = (RemoteWorker(machines[name], door) for name in (CUT_OFF, STAYS))
        await lost.submit("a build of the hosts")
        job = await _in_time(lost.claim_at_last())
        cut_off = await self._lose(CUT_OFF, drip)
        killed = await self._lose(KILLED, drip)
        async with _beside(self._watch_transactions()):
            again = await _in_time(heir.claim_at_last())
            assert again["job_id"] == job["job_id"]
            in_time = await heir.complete(again, STAYS)
            await until(self._all_taken_over, "work that was taken over")
        await asyncio.to_thread(self.fleet.network.rejoin, CUT_OFF)
        back = await self.ledger.now()
        drip.give_the_rest()
        await self._works(CUT_OFF, back)
        late = await lost.complete(job, CUT_OFF)
        return Times(cut_off, killed, back), Lateness(in_time, late)

    async def _lose(self, host: str, drip: Drip) -> float:
        """With work in hand; when that was."""

        async def is_busy() -> bool:
            return await self.ledger.in_hand(host) >= _ENOUGH_IN_HAND

        drip.burst(_BURST)
        await until(is_busy, f"work in hand on {host}")
        strike = self.fleet.network.cut_off if host == CUT_OFF else self.fleet.network.kill
        at = await self.ledger.now()
        await asyncio.to_thread(strike, host)
        return at

    async def _watch_transactions(self) -> None:
        while True:
            open_for = await self.ledger.oldest_transaction()
            self.oldest_transaction = max(self.oldest_transaction, open_for)
            await asyncio.sleep(0.2)

    async def _all_taken_over(self) -> bool:
        """Nothing is in the hands of the lost any more, and all of it was begun again."""
        if any([await self.ledger.in_hand(host) for host in (CUT_OFF, KILLED)]):
            return False
        lost = await self.ledger.taken_over()
        return all(one.begun_at is not None for one in lost)


async def _in_time(work: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await work


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs while the body does, and not for longer."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
        assert not task.done(), "it ended by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def scene_of(fleet: Fleet) -> AsyncIterator[Scene]:
    """The tables are there, and nobody works yet."""
    async with looking_at(fleet.database_url):
        connection = await asyncpg.connect(fleet.database_url)
    ledger = Ledger(connection)
    await ledger.set_up()
    try:
        async with Balancer(fleet.doors()) as balancer:
            crowd = Crowd(lambda: [balancer.port])
            yield Scene(fleet, ledger, balancer, crowd)
    finally:
        await connection.close()


@asynccontextmanager
async def load_on(scene: Scene, unique: list[Parcel]) -> AsyncIterator[Drip]:
    """Deliveries while the body lasts, and then until all of them are taken."""
    drip = Drip(with_duplicates(unique, seed=5), _EACH_SECOND, _KEPT_BACK)
    async with asyncio.TaskGroup() as group:
        group.create_task(drip.run())
        group.create_task(scene.crowd.send_from(drip.following, _AT_ONCE))
        yield drip
