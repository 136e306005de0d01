"""What a node of the tow's scene reaches beyond its store, each over a wire of its own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from towline.forges.delivery_log import ForgeUnavailable
from towline.integrations.ci import CiUnavailable
from towline.remediation.strategies import CLOSING_TEXT
from towline_once.db.sqlite import run_statement
from towline_once.db.statement import Script, play
from towline_once.errors import Unavailable
from towline_sim.proof.fault_schedule import RARE
from towline_sim.proof.harness import Stage
from towline_sim.proof.scenarios.tow_world import TowWorld
from towline_sim.proof.store import SimDatabase, SimServer
from towline_sim.proof.wire import Wire

T = TypeVar("T")
_BUSY_SECONDS: Final = 20.0
_CHANGE: Final = "_changing"
_SELDOM: Final = frozenset({"_marked"})
"""Who changes something seldom."""
_SLOW: Final = (0.0, 0.3, 0.7)
"""How often an answer takes its time; a seed has one of these."""
_ANSWER_SECONDS: Final = (0.1, 2.5)


def forge_trouble(text: str) -> ForgeUnavailable:
    """What a forge refuses at once it will take later: a rate limit."""
    return ForgeUnavailable(text, _BUSY_SECONDS if "refused" in text else 0.0)


def ci_trouble(text: str) -> CiUnavailable:
    return CiUnavailable(text)


class Wired:
    """Calls the part on its other end, in the world's time, with all that may befall a call.

    In some seeds answers take their time, and webhooks tell of what was done before it is answered.
    """

    def __init__(self, part: Any, wire: Wire, town: TowWorld, seed: int) -> None:
        self._part = part
        self._wire = wire
        self._town = town
        self._dice = random.Random(f"answers {seed} {wire.node}")  # noqa: S311  the same again
        self._slow = _SLOW[random.Random(f"slow {seed}").randrange(len(_SLOW))]  # noqa: S311
        self.name = getattr(part, "name", "")

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            people, place = self._town.people, _called(name, args)
            try:
                answer = await self._wire.call(place, lambda: self._at_once(name, args, named))
            except Unavailable:
                people.not_answered(name, args)
                raise
            meanwhile = name == "failure_log" and people.act_meanwhile(*args[:2])
            if meanwhile or (self._slow and self._dice.random() < self._slow):
                await asyncio.sleep(self._dice.uniform(*_ANSWER_SECONDS))
            return answer

        return call

    async def _at_once(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._town.go_on()
        try:
            return await getattr(self._part, name)(*args, **named)
        finally:
            self._town.go_on()


def _called(name: str, args: tuple[Any, ...]) -> str:
    """The name of a call; to close, and to say so, are seldom called."""
    closing = name == "close" or (name == "comment" and args[1] == CLOSING_TEXT)
    return f"{RARE} close: {name}" if closing else name


class Chat:
    """Where people read what they are told; `told` counts each text by its last line."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self.told: Counter[str] = Counter()
        self._heard = heard

    async def notify(self, title: str, text: str) -> None:
        line = text.splitlines()[-1]
        self.told[line] += 1
        self._heard(line)


class ReadCommitted(SimDatabase):
    """As PostgreSQL does it: until a transaction writes, others write between its reads."""

    def __init__(self, stage: Stage, wire: Wire, clock: Any, mailbox: Any) -> None:
        super().__init__(stage.server, wire, clock, mailbox)
        self._dice = random.Random(f"reads {stage.seed} {wire.node}")  # noqa: S311  the same again

    async def transact(self, script: Callable[[], Script[T]]) -> T:
        if _CHANGE not in script.__code__.co_names:
            return await super().transact(script)
        return await self._wire.call(_place_of(script), lambda: self._changed(script()))

    async def _changed(self, steps: Script[T]) -> T:
        server: SimServer = self._server
        try:
            statement, rows = next(steps)
            while not statement.writes:
                read = run_statement(server.db, server.clock, statement, rows)
                if self._dice.random() < 0.3:
                    await asyncio.sleep(self._dice.choice((0.0, 0.001, 0.05)))
                statement, rows = steps.send(read)
        except StopIteration as end:
            done: T = end.value
            return done
        first = statement, rows

        def rest() -> Script[T]:
            written = yield first
            while True:
                try:
                    step = steps.send(written)
                except StopIteration as end:
                    value: T = end.value
                    return value
                written = yield step

        return server.transact(lambda run: play(rest(), run))


def _place_of(script: Callable[[], Any]) -> str:
    """By who decides, so that one kind of change may fare worse than the others."""
    names, cells = script.__code__.co_freevars, script.__closure__ or ()
    decide = next((cell for name, cell in zip(names, cells, strict=True) if name == "decide"), None)
    if decide is None:
        return _CHANGE
    name = decide.cell_contents.__qualname__.split(".<locals>")[0]
    return f"{_CHANGE} {RARE} {name}" if name in _SELDOM else f"{_CHANGE} {name}"
