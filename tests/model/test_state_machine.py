"""All four backends in lockstep with one plain model of idempotency."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)

from tests.clocks import ManualClock
from tests.model.idempotency_model import Answer, Model, Place
from tests.model.lockstep import run_machine
from towline import Claim, Idempotency, InFlight
from towline_once.db.statement import Statement

BACKENDS = ("memory", "sqlite", "postgres", "redis")
PAYLOADS = ({"n": 1}, {"n": 2})
EXAMPLES, STEPS = 150, 50
CLEAR = Statement("clear", {"unused": "bigint"}, "DELETE FROM once_records RETURNING 1")
CLEAR_REDIS = """
for _, key in ipairs(redis.call('KEYS', 'towline:idem:*')) do redis.call('DEL', key) end
"""

places = st.tuples(st.sampled_from(["acme", "globex"]), st.sampled_from(["jira:1", "jira:2"]))


@dataclass(frozen=True)
class Held:
    """A claim as the model knows it, and the same claim on each backend."""

    place: Place
    token: int
    attempts: int
    claims: list[Claim]


class Fleet:
    """One handle on each backend, all with the same clock."""

    def __init__(self, urls: list[str]) -> None:
        self._runner = asyncio.Runner()
        self.clock = ManualClock()
        self.handles: list[Idempotency] = [self._runner.run(self._open(url)) for url in urls]

    async def _open(self, url: str) -> Idempotency:
        return await Idempotency.open(url, clock=self.clock)

    def each(self, call: Callable[..., Coroutine[Any, Any, Any]], *lists: list[Any]) -> list[Any]:
        """The answers of all backends to one call."""

        async def ask() -> list[Any]:
            return await asyncio.gather(*[call(*one) for one in zip(self.handles, *lists)])  # noqa: B905

        return self._runner.run(ask())

    def clear(self) -> None:
        """Empty stores for the next example, without opening them anew."""

        async def clear(idem: Idempotency) -> None:
            records: Any = idem._records
            if hasattr(records, "_database"):
                await records._database.run(CLEAR, [(0,)])
            elif hasattr(records, "_redis"):
                await records._redis.call("EVAL", CLEAR_REDIS, 0)
            else:
                records._records.clear()

        self.each(clear)

    def close(self) -> None:
        self.each(lambda idem: idem.aclose())
        self._runner.close()


class Lockstep(RuleBasedStateMachine):
    """Each rule asks all backends and the model, and compares."""

    fleet: Fleet
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.fleet.clear()
        self.model = Model()
        self.highest: dict[Place, list[int]] = {}
        self.serial = itertools.count(1)

    @rule(
        target=claims,
        place=places,
        payload=st.sampled_from(PAYLOADS),
        on_crash=st.sampled_from(["retry", "retry", "park", "fail"]),
    )
    def check_and_set(self, place: Place, payload: Any, on_crash: Any) -> Any:
        found = self.fleet.each(
            lambda idem: idem.check_and_set(place[1], place[0], payload, on_crash=on_crash)
        )
        expected = self.model.claim(place, payload, on_crash)
        for backend, claim in zip(BACKENDS, found, strict=True):
            assert seen(claim, expected) == expected, backend
            assert list(claim.pointers) == (["/n"] if expected.status == "collision" else [])
        if expected.status != "new":
            return multiple()
        tokens = [claim.token for claim in found]
        before = self.highest.get(place, [0] * len(found))
        assert all(new > old for new, old in zip(tokens, before, strict=True)), "tokens grow"
        self.highest[place] = tokens
        return Held(place, expected.token, expected.attempts, found)

    @rule(held=claims, run_id=st.sampled_from([None, "r1"]), fresh=st.booleans())
    def complete(self, held: Held, run_id: str | None, fresh: bool) -> None:
        response = {"result": next(self.serial) if fresh else 0}
        expected = self.model.complete(held.place, held.token, response, run_id)
        found = self.fleet.each(
            lambda idem, claim: idem.complete(claim, response, run_id), held.claims
        )
        assert found == [expected] * len(found)

    @rule(held=claims, definitive=st.booleans(), error=st.sampled_from(["broken", "late"]))
    def fail(self, held: Held, definitive: bool, error: str) -> None:
        expected = self.model.fail(held.place, held.token, error, definitive)
        found = self.fleet.each(
            lambda idem, claim: idem.fail(claim, error, definitive=definitive), held.claims
        )
        assert found == [expected] * len(found)

    @rule(held=claims)
    def extend(self, held: Held) -> None:
        expected = self.model.extend(held.place, held.token)
        found = self.fleet.each(lambda idem, claim: idem.extend(claim), held.claims)
        assert found == [expected] * len(found)

    @rule(held=claims)
    def release(self, held: Held) -> None:
        expected = self.model.release(held.place, held.token, held.attempts)
        found = self.fleet.each(lambda idem, claim: idem.release(claim), held.claims)
        assert found == [expected] * len(found)

    @rule(place=places)
    def redeliver(self, place: Place) -> None:
        async def ask(idem: Idempotency) -> Any:
            try:
                return shown(await idem.redeliver(place[1], place[0], by="operator"))
            except InFlight:
                return "in flight"

        expected = self.model.redeliver(place)
        expected = expected if isinstance(expected, str) else shown(expected)
        assert self.fleet.each(ask) == [expected] * len(BACKENDS)

    @rule(seconds=st.sampled_from([100, 300, 3600, 86_400]))
    def advance(self, seconds: int) -> None:
        self.fleet.clock.advance(seconds)
        self.model.now += seconds

    @rule()
    def cleanup(self) -> None:
        expected = self.model.cleanup()
        assert self.fleet.each(lambda idem: idem.cleanup_expired()) == [expected] * len(BACKENDS)

    @rule(place=places)
    def get(self, place: Place) -> None:
        expected = shown(self.model.get(place))

        async def ask(idem: Idempotency) -> Any:
            return shown(await idem.get(place[1], place[0]))

        assert self.fleet.each(ask) == [expected] * len(BACKENDS)

    @invariant()
    def sizes_agree(self) -> None:
        sizes = self.fleet.each(lambda idem: idem._records.size())
        assert sizes == [len(self.model.entries)] * len(BACKENDS)


def seen(claim: Claim, like: Answer) -> Answer:
    """A claim in the model's terms; its token is the backend's own affair."""
    return Answer(
        claim.status, claim.attempts, like.token, claim.response, claim.run_id, claim.error,
        claim.definitive, claim.exhausted, claim.parked, claim.recovered,
    )  # fmt: skip


def shown(record: Any) -> Any:
    if record is None:
        return None
    return (
        record.status, record.attempts, record.response, record.run_id, record.error,
        record.definitive,
    )  # fmt: skip


@pytest.fixture
def fleet(every_url: list[str]) -> Iterator[Fleet]:
    ships = Fleet(every_url)
    yield ships
    ships.close()


@pytest.mark.slow
@pytest.mark.full_size
def test_every_backend_agrees_with_the_model(fleet: Fleet) -> None:
    """Whatever is done in whatever order, all four give the answers of one plain dictionary."""
    run_machine(Lockstep, fleet, EXAMPLES, STEPS)
