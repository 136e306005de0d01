"""How clients and remote workers reach a node: over a network that loses, delays and doubles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from towline.submit.service import Submit
from towline_once.errors import TowlineError
from towline_sim.proof.fault_schedule import Kind
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import Node

PATIENCE_SECONDS: Final = 10.0
_KINDS: Final[Mapping[Kind, int]] = {
    "request lost": 2, "reply lost": 4, "slow": 2, "twice": 2, "pause before": 1,
}  # fmt: skip


class Answer(NamedTuple):
    """Neither value nor error: nothing was heard."""

    began: float
    value: Any = None
    error: TowlineError | None = None
    silent: bool = False


class Phone:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def call(
        self, caller: Node, place: str, work: Callable[[Submit], Awaitable[Any]]
    ) -> Answer:
        """Whichever node is up is asked; which one it is, is not the caller's business."""
        fault = self._stage.weather.at(caller, f"http {place}", _KINDS)
        kind = fault.kind if fault is not None else None
        if fault is not None and kind in ("slow", "pause before"):
            await asyncio.sleep(fault.seconds)
        if kind == "request lost":
            await asyncio.sleep(PATIENCE_SECONDS)
            return Answer(self._stage.loop.time(), silent=True)
        if kind == "twice":
            await self._once(caller, place, work)
        answer = await self._once(caller, place, work)
        if kind == "reply lost":
            return Answer(answer.began, silent=True)
        return answer

    async def _once(
        self, caller: Node, place: str, work: Callable[[Submit], Awaitable[Any]]
    ) -> Answer:
        began, live = self._stage.loop.time(), self._stage.live()
        if not live:
            return Answer(began, silent=True)
        actor = self._stage.dice.choice(live)
        call = actor.task(work(actor.program))
        call.add_done_callback(_looked_at)
        await asyncio.wait([call], timeout=PATIENCE_SECONDS)
        if not call.done():
            return Answer(began, silent=True)
        error = call.exception()
        if error is None:
            return Answer(began, call.result())
        if not isinstance(error, TowlineError):
            self._stage.violation(f"{place} of {caller} raised {error!r}")
            return Answer(began, silent=True)
        self._stage.tell(actor.node, f"{place} of {caller}: {type(error).__name__}")
        return Answer(began, error=error)


def _looked_at(call: asyncio.Task[Any]) -> None:
    """Nobody may be there any more to hear of its error."""
    if not call.cancelled():
        call.exception()
