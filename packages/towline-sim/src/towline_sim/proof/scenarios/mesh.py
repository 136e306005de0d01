"""The submit API: clients that ask again, workers that die, sleep and answer late."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from towline.jobs.model import Backoff
from towline.jobs.store import JobStore
from towline.submit.rules import Keep
from towline.submit.service import Submit, SubmitPolicy
from towline.submit.store import RequestStore
from towline.upkeep.periodic import Chore, Upkeep
from towline.upkeep.reaper import Reaper
from towline_once.coordination.locks import LockService
from towline_once.coordination.sql import SqlLeases
from towline_once.metrics import audit_to_log
from towline_sim.proof.harness import Actor, Stage
from towline_sim.proof.invariants.requests import Bounds, RequestWatch
from towline_sim.proof.reconnect import Reconnecting
from towline_sim.proof.scenarios.mesh_clients import Client
from towline_sim.proof.scenarios.mesh_network import Phone
from towline_sim.proof.scenarios.mesh_workers import Temper, Worker

NODES: Final = ("one", "two")
MAX_CACHED: Final = 200
KEEP: Final = Keep(completed_us=30_000_000, failed_us=15_000_000)
_LEADER_SECONDS: Final = 6.0
_STORM_SECONDS: Final = 90.0
_CALM_SECONDS: Final = 400.0


class _Silence:
    """Remote workers ask by themselves."""

    def ring(self, job_ids: object = ()) -> None:
        return None


class MeshScene:
    name = "mesh"
    longest_pause = 24.0

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        dice = stage.dice
        self.bounds = Bounds(
            max_queued=dice.choice([2, 4, 50]),
            max_inflight=dice.choice([1, 2, 50]),
            max_items=dice.choice([4, 1000]),
            max_attempts=3,
        )
        self.watch = RequestWatch(stage, KEEP, self.bounds)
        stage.server.watchers.append(self.watch)
        self.phone = Phone(stage)
        temper = dice.choice(list(Temper))
        self.workers = [
            Worker(stage, self.phone, self.watch, f"worker-{n}", temper)
            for n in range(dice.randint(2, 5))
        ]
        self.clients = [
            Client(stage, self.phone, self.watch, f"client-{n}", MAX_CACHED)
            for n in range(dice.randint(1, 3))
        ]

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        helpers = [asyncio.ensure_future(stage.caretaker())]
        helpers += [asyncio.ensure_future(one.work()) for one in self.workers]
        asks = [
            asyncio.ensure_future(ask)
            for client in self.clients
            for ask in client.asks(_STORM_SECONDS * 0.9)
        ]
        await stage.blow(_STORM_SECONDS)
        await asyncio.gather(*asks)
        await self._all_end()
        for helper in helpers:
            if helper.done():
                helper.result()
            helper.cancel()

    async def _boot(self, actor: Actor) -> None:
        database, clock = Reconnecting(actor), actor.clock
        jobs = JobStore(database)
        policy = SubmitPolicy(
            max_items=self.bounds.max_items,
            max_queued=self.bounds.max_queued,
            max_inflight=self.bounds.max_inflight,
            max_attempts=self.bounds.max_attempts,
            backoff=Backoff(1_000_000, 8_000_000),
        )
        requests = RequestStore(database, KEEP, MAX_CACHED)
        submit = Submit(requests, jobs, clock, policy, audit_to_log)
        locks = LockService(SqlLeases(database), database.mailbox, clock)
        chores = [
            Chore("reap", 1.0, Reaper(jobs, _Silence()).reap),
            Chore("requests", 5.0, submit.cleanup),
        ]
        actor.program = submit
        await Upkeep(partial(locks.acquire, "leader", _LEADER_SECONDS, 30.0), chores).run()

    async def _all_end(self) -> None:
        """Soon after the last trouble every request that was taken in is done or dead."""
        for worker in self.workers:
            worker.calm()
        for _ in range(int(_CALM_SECONDS / 2)):
            if not self._unfinished():
                break
            await asyncio.sleep(2.0)
        left = self._unfinished()
        self.stage.expect(not left, f"{left} submitted jobs never end")
        for client in self.clients:
            await client.look_at_all()

    def _unfinished(self) -> int:
        return sum(job.finished_us is None for job in self.watch.jobs.values())
