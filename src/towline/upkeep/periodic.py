"""The chores of a fleet: done by one process at a time, whichever holds the leader's lease.

Each chore is safe when two do it at once, as its writes are compared inside the store; the lease
only saves the work of doing it many times. One that fails is tried again at its next turn, and
does not hold up the others. One that ended for lack of time has its next turn soon.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeAlias

from towline_once.errors import Conflict, LeaseLost, Transient

Election: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

_AFTER_TROUBLE_SECONDS = 1.0
_SOON_SECONDS = 0.5
_log = logging.getLogger("towline.upkeep")


class Turn(NamedTuple):
    """What a chore did in its turn, if it has something to tell."""

    rows: int
    more: bool
    """It has not come to an end: its next turn is soon."""


class Chore(NamedTuple):
    name: str
    every_seconds: float
    work: Callable[[], Awaitable[object]]


class Upkeep:
    def __init__(self, election: Election, chores: Sequence[Chore]) -> None:
        self._election = election
        self._chores = chores

    async def run(self) -> None:
        """Stand for election for ever, and do the chores while elected."""
        while True:
            try:
                async with self._election():
                    _log.info("leading")
                    await self._lead()
            except (Conflict, LeaseLost):
                continue
            except Transient as trouble:
                _log.warning("leadership_lost error=%s", trouble)
                await asyncio.sleep(_AFTER_TROUBLE_SECONDS)

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            for chore in self._chores:
                group.create_task(_repeat(chore))


async def _repeat(chore: Chore) -> None:
    while True:
        pause = chore.every_seconds
        try:
            done = await chore.work()
            if isinstance(done, Turn) and done.more:
                pause = min(pause, _SOON_SECONDS)
        except Transient as trouble:
            _log.warning("chore_delayed chore=%s error=%s", chore.name, trouble)
        except Exception:
            _log.exception("chore_failed chore=%s", chore.name)
        await asyncio.sleep(pause)
