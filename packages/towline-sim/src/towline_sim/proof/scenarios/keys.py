"""Idempotency keys: many callers, few keys, holders that die, sleep and are superseded."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final, NamedTuple

import orjson

from towline_once import keys
from towline_once.backends import backend_over
from towline_once.errors import (
    Definitive,
    Exhausted,
    Indeterminate,
    InFlight,
    KeyCollision,
    Stale,
    TowlineError,
    Transient,
)
from towline_once.idempotency.service import IdempotencyService
from towline_once.idempotency.state import OnCrash, Policy
from towline_once.metrics import audit_to_log
from towline_sim.proof.bodies import Bodies
from towline_sim.proof.harness import Actor, Stage
from towline_sim.proof.invariants.tables import RecordWatch
from towline_sim.proof.loop import Node
from towline_sim.proof.services import Reconnecting

NODES: Final = ("one", "two", "three")
LOCK_SECONDS: Final = 6.0
MAX_ATTEMPTS: Final = 3
_STORM_SECONDS: Final = 60.0
_LONGEST_CALL: Final = 60.0
_AFTERWARDS: Final = 20
_KEEP_SECONDS: Final = 1200.0
_KEEP_US: Final = int(_KEEP_SECONDS * 1e6)
_POLICY: Final = Policy(_KEEP_US, _KEEP_US, int(LOCK_SECONDS * 1e6), MAX_ATTEMPTS)
_FATES: Final = ("well", "well", "well", "well", "well", "again", "again", "never")
"""How a handler ends, where that may be tried again."""


class _Ask(NamedTuple):
    at: float
    key: keys.GitHub
    on_crash: OnCrash
    wait: float | None
    takes: float
    fate: str = "well"
    payload: int = 1


class KeysScene:
    name = "keys"
    longest_pause = 4 * LOCK_SECONDS

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.bodies = Bodies(stage)
        self.results: dict[str, set[bytes]] = {}
        self.serial = 0
        self.refused: set[str] = set()
        """Keys whose handler has said that it will never work."""
        self.asking: Counter[tuple[Node, str]] = Counter()
        """How many in a node ask for a key, or have heard nothing."""
        ways: list[OnCrash] = ["retry", "retry", "park", "fail"]
        self.keys = [keys.GitHub(delivery_id=f"key-{n}") for n in range(stage.dice.randint(1, 4))]
        self.on_crash = {key: stage.dice.choice(ways) for key in self.keys}
        self.records = RecordWatch(stage, MAX_ATTEMPTS)
        stage.server.watchers.append(self.records)

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        care = asyncio.ensure_future(stage.caretaker())
        calls = [asyncio.ensure_future(self._asked(ask)) for ask in self._asks()]
        await stage.blow(_STORM_SECONDS)
        await asyncio.gather(*calls)
        await self._all_end()
        care.cancel()

    async def _boot(self, actor: Actor) -> None:
        backend = backend_over(Reconnecting(actor), actor.clock)
        actor.program = IdempotencyService(
            backend.records,
            backend.mailbox,
            actor.clock,
            policy=_POLICY,
            max_cached_bytes=4096,
            max_items=1000,
            audit=audit_to_log,
        )

    def _asks(self) -> list[_Ask]:
        dice = self.stage.dice
        return [
            _Ask(
                dice.uniform(0, _STORM_SECONDS * 0.8),
                key := dice.choice(self.keys),
                self.on_crash[key],
                dice.choice([None, 5.0, 20.0]),
                dice.choice([0.01, 2.0, LOCK_SECONDS * 1.5, LOCK_SECONDS * 2.5]),
                dice.choice(_FATES) if self.on_crash[key] == "retry" else "well",
            )
            for _ in range(dice.randint(10, 40))
        ]

    async def _asked(self, ask: _Ask) -> None:
        await asyncio.sleep(ask.at)
        live = self.stage.live()
        if not live:
            return
        actor = self.stage.dice.choice(live)
        call = actor.task(self._call(actor, ask))
        await asyncio.wait([call], timeout=_LONGEST_CALL + self.longest_pause)
        slept = actor.node.pauses or not actor.node.alive
        self.stage.expect(call.done() or bool(slept), f"a call for {ask.key} never ended")

    async def _call(self, actor: Actor, ask: _Ask) -> str:
        service: IdempotencyService = actor.program
        done: list[int] = []

        async def handler() -> dict[str, Any]:
            self.serial += 1
            run = self.serial
            with self.bodies.at_work(str(ask.key)):
                await actor.work(ask.takes)
            self._end(ask)
            done.append(run)
            return {"run": run}

        given = (ask.key, "acme", {"n": ask.payload}, handler)
        place = (actor.node, str(ask.key))
        self.asking[place] += 1
        try:
            out = await service.process(*given, on_crash=ask.on_crash, wait=ask.wait)
        except (TowlineError, OSError) as error:
            self.stage.tell(actor.node, f"{ask.key}: {type(error).__name__}")
            self._said_so(ask, error)
            self._somebody_has_it(place, service, error)
            if isinstance(error, Stale) and done:
                self._superseded(str(ask.key), done[-1])
            return type(error).__name__
        self._somebody_has_it(place, service, None)
        self.stage.tell(actor.node, f"{ask.key}: {out.processed} {out.result}")
        if out.recorded:
            self._note(str(ask.key), orjson.dumps(out.result))
        return "answered"

    def _end(self, ask: _Ask) -> None:
        if ask.fate == "never":
            self.refused.add(str(ask.key))
            raise Definitive("the world says no")
        if ask.fate == "again":
            raise OSError("the world is not ready")

    def _said_so(self, ask: _Ask, error: Exception) -> None:
        """No caller is told that a key has failed for good which only has failed so far."""
        if type(error) is Definitive and ask.on_crash == "retry":
            refused = str(ask.key) in self.refused
            self.stage.expect(refused, f"{ask.key} failed for good, and no handler said so")

    def _somebody_has_it(
        self, place: tuple[Node, str], service: IdempotencyService, error: Exception | None
    ) -> None:
        """No caller is told to wait for another who has the key itself."""
        if isinstance(error, Transient):
            return
        alone = self.asking[place] == 1
        ours = self.records.is_held_by(place[1], service._ledger._process_id)
        self.asking[place] -= not ours  # an end that could not be written leaves it behind
        itself = isinstance(error, InFlight) and alone and ours
        self.stage.expect(not itself, f"{place[0]} waits for {place[1]}, which it has itself")

    def _superseded(self, key: str, run: int) -> None:
        """A caller that is told that it came too late must not find its own result there."""
        stands = self.records.response_of(key)
        recorded = orjson.dumps({"run": run}).decode()
        self.stage.expect(stands != recorded, f"{key}: run {run} stands, and was told it is late")

    def _note(self, key: str, result: bytes) -> None:
        results = self.results.setdefault(key, set())
        results.add(result)
        self.stage.expect(len(results) == 1, f"{key} has the results {sorted(results)}")

    async def _all_end(self) -> None:
        """When all is well again, each key has an answer soon."""
        for key in self.keys:
            ends = (Definitive.__name__, Exhausted.__name__, Indeterminate.__name__, "answered")
            for _ in range(_AFTERWARDS):
                await asyncio.sleep(2.0)
                live = [one for one in self.stage.live() if one.node.paused_until == 0.0]
                live = live or self.stage.live()
                if not live:
                    continue
                actor = live[0]
                ask = _Ask(0.0, key, self.on_crash[key], 10.0, 0.01)
                call = actor.task(self._call(actor, ask))
                await asyncio.wait([call], timeout=_LONGEST_CALL)
                if call.done() and call.result() in ends:
                    break
            else:
                self.stage.violation(f"{key} has no answer though all is well")
            self._check_begun(key)
        await self._lives_its_time()

    async def _lives_its_time(self) -> None:
        """A key belongs to its payload until its time is over, and then to the next caller."""
        for ends, wanted in ((0.0, KeyCollision.__name__), (_KEEP_SECONDS + 1.0, "answered")):
            await asyncio.sleep(ends)
            for key in self.keys:
                ask = _Ask(0.0, key, self.on_crash[key], 10.0, 0.01, payload=2)
                self.results.pop(str(key), None)
                said = await self._calmly(ask)
                parked = self.records.status_of(str(key)) == "parked"
                right = said == wanted or parked
                self.stage.expect(right, f"{key} after {ends:g} s: {said}, not {wanted}")

    async def _calmly(self, ask: _Ask) -> str:
        awake = [one for one in self.stage.live() if one.node.paused_until == 0.0]
        actor = (awake or self.stage.live())[0]
        call = actor.task(self._call(actor, ask))
        await asyncio.wait([call], timeout=_LONGEST_CALL)
        return str(call.result()) if call.done() else "nothing"

    def _check_begun(self, key: keys.GitHub) -> None:
        begun = self.bodies.begun.get(str(key), 0)
        most = MAX_ATTEMPTS if self.on_crash[key] == "retry" else 1
        self.stage.expect(begun <= most, f"{key} was begun {begun} times, {most} are allowed")
