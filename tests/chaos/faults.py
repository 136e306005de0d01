"""What is done to the world, in an order and for times that come from a seed.

The faults are a deck of cards that is shuffled again when it is used up, so that each kind comes
up in every long run. Between two cards some work gets done, or a while passes, so that a slow
machine sees fewer faults rather than nothing else; faults of different targets overlap.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from tests.chaos.world import LEASE_SECONDS, Kept, World
from tests.fault_proxy import FaultProxy
from tests.servers import PrivateServer, redis_command

Act: TypeAlias = Callable[[World, random.Random], Awaitable[None]]
Worked: TypeAlias = Callable[[], tuple[int, int]]
"""How many parcels were taken, and how many moves jobs made."""
_GAP = (0.5, 2.0)
_ENOUGH = 8
_LONGEST_GAP = 12.0


class Fault(NamedTuple):
    kind: str
    target: str
    """Nothing else is done to it meanwhile."""
    act: Act


# ---------------------------------------------------------------------- processes


def _killed(one: Kept) -> Act:
    async def act(world: World, dice: random.Random) -> None:
        async with one.hands_on:
            if one.is_up:
                one.struck = True
                await asyncio.to_thread(one.program.kill)

    return act


def _restarted(one: Kept) -> Act:
    """As for a new version: it finishes what it has in hand, and its successor is started."""

    async def act(world: World, dice: random.Random) -> None:
        async with one.hands_on:
            if one.is_up:
                one.struck = True
                await asyncio.to_thread(one.program.stop)

    return act


def _frozen(one: Kept) -> Act:
    """For longer than its leases."""

    async def act(world: World, dice: random.Random) -> None:
        seconds = LEASE_SECONDS * dice.uniform(1.2, 2.5)
        async with one.hands_on:
            if not one.is_up:
                return
            one.program.freeze()
            began = time.time()
            try:
                await asyncio.sleep(seconds)
            finally:
                one.program.thaw()
                one.naps.append((began, time.time()))

    return act


# ---------------------------------------------------------------------- servers


def _server(world: World, name: str) -> PrivateServer:
    return world.postgres if name == "postgres" else world.redis


def _server_killed(name: str) -> Act:
    async def act(world: World, dice: random.Random) -> None:
        server = _server(world, name)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(dice.uniform(0.0, 1.0))
        await asyncio.to_thread(server.start)

    return act


def _server_restarted(name: str) -> Act:
    async def act(world: World, dice: random.Random) -> None:
        await asyncio.to_thread(_server(world, name).restart)

    return act


def _server_paused(name: str) -> Act:
    async def act(world: World, dice: random.Random) -> None:
        server = _server(world, name)
        server.pause()
        try:
            await asyncio.sleep(dice.uniform(0.5, 1.5 * LEASE_SECONDS))
        finally:
            server.resume()

    return act


async def _redis_emptied(world: World, dice: random.Random) -> None:
    await asyncio.to_thread(redis_command, world.redis.url, "FLUSHALL")


# ---------------------------------------------------------------------- networks


def _through(name: str, spoil: Callable[[FaultProxy, random.Random], None]) -> Act:
    async def act(world: World, dice: random.Random) -> None:
        proxy = world.proxies[name]
        spoil(proxy, dice)
        try:
            await asyncio.sleep(dice.uniform(0.3, LEASE_SECONDS))
        finally:
            proxy.restore()

    return act


_SPOILS: dict[str, Callable[[FaultProxy, random.Random], None]] = {
    "cut": lambda proxy, dice: proxy.cut(),
    "slow": lambda proxy, dice: proxy.delay(dice.uniform(0.02, 0.4)),
    "losing answers": lambda proxy, dice: proxy.swallow_replies(),
    "losing requests": lambda proxy, dice: proxy.swallow_requests(),
    "cut within an answer": lambda proxy, dice: proxy.cut_after_reply_bytes(dice.randrange(2000)),
}


# ---------------------------------------------------------------------- the disk


async def _disk_full(world: World, dice: random.Random) -> None:
    """For a while, in which its process may be killed as well."""
    (one,) = world.cottage
    async with one.hands_on:
        if not one.program.running:
            return
        await asyncio.to_thread(world.disk.fill, one.program.pid)
    try:
        await asyncio.sleep(dice.uniform(1.0, 4.0))
    finally:
        world.disk.free()


# ---------------------------------------------------------------------- the deck


def deck(world: World) -> list[Fault]:
    """One card of each fault for each target."""
    cards = [
        Fault("disk full", "disk", _disk_full),
        Fault("redis emptied", "redis", _redis_emptied),
    ]
    for kind, kept in (("serve", world.doors), ("worker", world.hands), ("serve", world.cottage)):
        for one in kept:
            cards.append(Fault(f"{kind} killed", one.name, _killed(one)))
            cards.append(Fault(f"{kind} frozen", one.name, _frozen(one)))
            cards.append(Fault(f"{kind} restarted", one.name, _restarted(one)))
    for name in ("postgres", "redis"):
        cards.append(Fault(f"{name} killed", name, _server_killed(name)))
        cards.append(Fault(f"{name} restarted", name, _server_restarted(name)))
        cards.append(Fault(f"{name} paused", name, _server_paused(name)))
    for name in world.proxies:
        for how, spoil in _SPOILS.items():
            cards.append(Fault(f"network {how}", f"network to {name}", _through(name, spoil)))
    return cards


def drawn(world: World, dice: random.Random) -> Iterator[Fault]:
    while True:
        cards = deck(world)
        dice.shuffle(cards)
        yield from cards


async def storm(world: World, seconds: float, worked: Worked) -> None:
    """Faults for so long, and then until the last of them is over."""
    dice = random.Random(f"faults {world.seed}")
    end = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for fault in drawn(world, dice):
            await asyncio.gather(asyncio.sleep(dice.uniform(*_GAP)), _some_work(worked))
            if time.monotonic() >= end:
                return
            own = random.Random(dice.randrange(1 << 30))
            if not world.locks.setdefault(fault.target, asyncio.Lock()).locked():
                group.create_task(_strike(world, fault, own))
                await asyncio.sleep(0)


async def _some_work(worked: Worked) -> None:
    """Until enough of it was done since now, or for long enough."""
    sent, moves = worked()
    end = time.monotonic() + _LONGEST_GAP
    while time.monotonic() < end:
        sent_now, moves_now = worked()
        if sent_now - sent >= _ENOUGH and moves_now - moves >= _ENOUGH:
            return
        await asyncio.sleep(0.1)


async def _strike(world: World, fault: Fault, dice: random.Random) -> None:
    async with world.locks[fault.target]:
        world.faults[fault.kind] += 1
        with suppress(ProcessLookupError):
            await fault.act(world, dice)
