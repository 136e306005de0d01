"""A store's client that runs a statement again when its connection broke, as PostgreSQL's does.

The connection may break between the commit and its answer: then the statement runs twice, and
whatever it writes has to know itself again. Or the answer is slow, and what it grants is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from towline_once.db.sqlite import Run
from towline_once.errors import Transient, Unavailable
from towline_sim.proof.fault_schedule import Fault, Kind
from towline_sim.proof.harness import TIMEOUT_SECONDS, Actor
from towline_sim.proof.store import SimDatabase

T = TypeVar("T")
_BROKEN: Final[Mapping[Kind, int]] = {"twice": 1, "slow": 1}
"""What may befall an answer: nobody hears it and the statement is run again, or it takes long."""
_LONGEST_SECONDS: Final = 4.0


class Reconnecting(SimDatabase):
    def __init__(self, actor: Actor) -> None:
        stage = actor.stage
        wire = stage.wire(actor.node, stage.sql)
        super().__init__(stage.server, wire, actor.clock, actor.mailbox)
        self._stage = stage

    async def _call(self, place: str, work: Callable[[Run], T]) -> T:
        node = self._wire.node
        fault = self._stage.weather.at(node, f"answer to {place}", _BROKEN)
        if fault is None:
            return await super()._call(place, work)
        self._stage.tell(node, f"answer to {place}: {fault.kind} {fault.seconds:.3f}")
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await self._troubled(fault, place, work)
        except TimeoutError:
            raise Unavailable("sql did not answer in time") from None

    async def _troubled(self, fault: Fault, place: str, work: Callable[[Run], T]) -> T:
        """One deadline is over all of it, as the product's clients have it."""
        if fault.kind == "twice":
            with suppress(Transient):
                await super()._call(place, work)
            return await super()._call(place, work)
        done = await super()._call(place, work)
        await asyncio.sleep(min(fault.seconds, _LONGEST_SECONDS))
        return done
