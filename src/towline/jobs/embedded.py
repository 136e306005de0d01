"""The embedded engine: workers in this process, woken by a bell, with a slow poll as safety net.

The bell wakes this process at once. Others that share the store are told only while this one has
its hands full; several rings share one message.

The door goes first: while there is a crowd at that of this process (see `crowd`), its workers take
little, so that a storm is taken in before it is worked on. Processes without a door work on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

from towline.jobs.model import OWN_QUEUE, Claimed, Wish
from towline.jobs.runner import Crew
from towline.jobs.store import JobStore
from towline_once.errors import Transient
from towline_once.ports import Clock, Mailbox

_TOPIC = "jobs"
_POLL_SECONDS = 2.0
_BETWEEN_SHOUTS_SECONDS = (0.005, 0.01, 0.02)
"""The longer the ringing goes on, the more of it shares a message."""
_AFTER_TROUBLE_SECONDS = 0.5
_MOST_PER_CLAIM = 100
_MOST_UNSETTLED = 1_000
_MOST_BESIDE_A_CROWD = 64
_PAUSE_FOR_A_CROWD_SECONDS = 0.16
"""Few at a time would cost as many commits as many do, and the door waits for each of them."""
_log = logging.getLogger("towline.work")


class ShoutingBell:
    """Rings here, or in all processes; those that are told hear of it once in a while."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._shouting: asyncio.Task[None] | None = None
        self._again = False
        self.hungry = False
        """Whether a worker in this process waits for work."""

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        if self.hungry:
            self.hungry = False
            self._mailbox.deliver(_TOPIC)
        elif self._shouting is None:
            self._shouting = asyncio.get_running_loop().create_task(self._shout())
        else:
            self._again = True

    async def _shout(self) -> None:
        """A ring while another is under way, or shortly after, goes out with the next one."""
        try:
            for pause in chain(_BETWEEN_SHOUTS_SECONDS, repeat(_BETWEEN_SHOUTS_SECONDS[-1])):
                self._again = False
                await self._mailbox.shout(_TOPIC)
                await asyncio.sleep(pause)
                if not self._again:
                    return
        finally:
            self._shouting = None

    def listen(self) -> asyncio.Event:
        return self._mailbox.expect(_TOPIC)

    def stop_listening(self, heard: asyncio.Event) -> None:
        self._mailbox.forget(_TOPIC, heard)


class EmbeddedWorker:
    """Claims what is due, as much as it has hands for, and runs it."""

    def __init__(
        self,
        jobs: JobStore,
        crew: Crew,
        bell: ShoutingBell,
        clock: Clock,
        concurrency: int,
        crowd_at_the_door: Callable[[], bool] = lambda: False,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._crowd_at_the_door = crowd_at_the_door
        self._poll_seconds = poll_seconds
        self._jobs = jobs
        self._crew = crew
        self._bell = bell
        self._clock = clock
        self._concurrency = concurrency
        self._busy = 0
        self._running: set[asyncio.Task[Any]] = set()
        self._freed = asyncio.Event()
        self._stopping = False
        self._heard: asyncio.Event | None = None

    async def run(self) -> None:
        """Work until `stop`."""
        heard = self._heard = self._bell.listen()
        try:
            while not self._stopping:
                heard.clear()
                most = _MOST_PER_CLAIM
                if self._crowd_at_the_door():
                    await asyncio.sleep(_PAUSE_FOR_A_CROWD_SECONDS)
                    most = _MOST_BESIDE_A_CROWD
                room = min(self._room(), most)
                if room <= 0:
                    await self._wait_for_a_hand()
                elif await self._claim(room) < room:
                    await self._rest(heard)
        finally:
            self._bell.stop_listening(heard)

    def _room(self) -> int:
        if len(self._running) >= _MOST_UNSETTLED:
            return 0
        return min(_MOST_PER_CLAIM, self._concurrency - self._busy)

    async def _wait_for_a_hand(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    async def _claim(self, room: int) -> int:
        """How many jobs were found; trouble with the store counts as none, after a pause."""
        rules = self._crew.rules
        sent_at = self._clock.monotonic()
        wish = Wish((OWN_QUEUE,), rules.owner, room, rules.lease_us, rules.repo_limit)
        try:
            claimed = await self._jobs.claim(wish)
        except Transient as trouble:
            _log.warning("claim_failed error=%s", trouble)
            await asyncio.sleep(_AFTER_TROUBLE_SECONDS)
            return 0
        loop = asyncio.get_running_loop()
        self._busy += len(claimed)
        for job in claimed:
            task = loop.create_task(self._run(job, sent_at))
            self._running.add(task)
            task.add_done_callback(self._ended)
        if claimed:
            await asyncio.sleep(0)  # they begin before the store is asked for more
        return len(claimed)

    async def _run(self, job: Claimed, sent_at: float) -> None:
        await self._crew.run(job, sent_at, self._free_a_hand)
        if job.repo is not None and self._heard is not None:
            self._heard.set()  # its slot may have called a job back that had to wait for one

    def _free_a_hand(self) -> None:
        self._busy -= 1
        self._freed.set()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("worker_error", exc_info=task.exception())

    async def _rest(self, heard: asyncio.Event) -> None:
        """Until the bell rings, the next job is due, or it is time to look by oneself."""
        try:
            due = await self._jobs.due_in((OWN_QUEUE,))
        except Transient:
            due = None
        pause = self._poll_seconds if due is None else min(self._poll_seconds, max(due, 0.001))
        if heard.is_set() or self._stopping:
            return
        self._bell.hungry = True
        try:
            async with asyncio.timeout(pause):
                await heard.wait()
        except TimeoutError:
            return
        finally:
            self._bell.hungry = False

    async def stop(self, drain_seconds: float) -> None:
        """Take nothing new, let work finish for a while, give the rest back."""
        self._stopping = True
        self._freed.set()
        if self._heard is not None:
            self._heard.set()
        await self._crew.drain(drain_seconds)
        if self._running:
            await asyncio.wait(set(self._running), timeout=5)


# ------------------------------------------------------------------ pressure of ingest
# Whether the door needs the processor more than the workers of its process do.
#
# It does while deliveries keep coming and this process has no time left. How many are under way
# says little: they may wait for a store that is far away, and after each commit there are none for
# a moment. So what has happened since the last look is judged, if that was not just now.

_SHORTEST_SECONDS: Final = 0.05
_MANY_A_SECOND: Final = 200
_BUSY_SHARE: Final = 0.4
"""Of one processor: Python makes use of little more, and a container may have but half of it."""


class _Look(NamedTuple):
    at: float
    deliveries: int
    cpu_seconds: float


class Crowd:
    def __init__(
        self,
        deliveries: Callable[[], int],
        clock: Clock,
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        """`deliveries` tells how many have come, and `cpu_seconds` what this process has used."""
        self._deliveries = deliveries
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._last = self._look()
        self._is_here = False

    def __call__(self) -> bool:
        look = self._look()
        if look.at - self._last.at >= _SHORTEST_SECONDS:
            self._is_here = _is_a_crowd(self._last, look)
            self._last = look
        return self._is_here

    def _look(self) -> _Look:
        return _Look(self._clock.monotonic(), self._deliveries(), self._cpu_seconds())


def _is_a_crowd(before: _Look, now: _Look) -> bool:
    passed = now.at - before.at
    many = now.deliveries - before.deliveries >= _MANY_A_SECOND * passed
    return many and now.cpu_seconds - before.cpu_seconds >= _BUSY_SHARE * passed
