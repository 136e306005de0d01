"""Leases, slots, marks and rates: all four backends in lockstep with one plain model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from tests.clocks import ManualClock
from tests.model.coordination_model import Model, Shown
from tests.model.lockstep import run_machine
from tests.sizes import size
from towline_once.backends import Backend, backend_for
from towline_once.coordination.rate_limit import rate_of, verdict

BACKENDS = ("memory", "sqlite", "postgres", "redis")
EXAMPLES, STEPS = size(16, 400), 50
SECOND = 1_000_000
ADDRESSES = ["here", "there"]
TTLS = [3, 60]
LIMITS = [(1, 60), (3, 3600)]

examples = itertools.count(1)


class Fleet:
    def __init__(self, urls: list[str]) -> None:
        self._runner = asyncio.Runner()
        self.clock = ManualClock()
        self.backends = [backend_for(url, self.clock) for url in urls]
        self.each(lambda backend: backend.connect())

    def each(self, call: Callable[..., Awaitable[Any]], *lists: list[Any]) -> list[Any]:
        async def ask() -> list[Any]:
            calls = [call(*one) for one in zip(self.backends, *lists, strict=True)]
            return await asyncio.gather(*calls)

        return self._runner.run(ask())

    def close(self) -> None:
        self.each(lambda backend: backend.aclose())
        self._runner.close()


class Lockstep(RuleBasedStateMachine):
    fleet: Fleet

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.example = next(examples)
        self.serial = itertools.count(1)
        self.numbers: dict[int, list[int]] = {}
        self.tickets: list[tuple[str, int]] = []
        for name in "ab":
            self._take(name, self.newcomer(), 60)

    def place(self, name: str) -> str:
        """Names are new in each example, so that the stores need not be emptied."""
        return f"{name}-{self.example}"

    def same_number(self, expected: int, found: list[int]) -> None:
        """A number of the model stands for one of each backend; later ones are larger."""
        if expected not in self.numbers:
            before = max(self.numbers, default=0)
            for old, new in zip(self.numbers.get(before, [0] * 4), found, strict=True):
                assert new > old, f"{BACKENDS}: {found} after {self.numbers.get(before)}"
        assert self.numbers.setdefault(expected, found) == found

    def same_lease(self, expected: Shown | None, found: list[Any]) -> None:
        assert [grant is None for grant in found] == [expected is None] * 4, found
        if expected is None:
            return
        shown = [(grant.holder, grant.expires_us > grant.now) for grant in found]
        assert shown == [(expected.holder, expected.live)] * 4
        self.same_number(expected.token, [grant.token for grant in found])

    # ------------------------------------------------------------------ leases

    def newcomer(self) -> str:
        """A holder is one attempt, so each has a new id."""
        return f"h{next(self.serial)}"

    @rule(name=st.sampled_from("ab"), ttl=st.sampled_from(TTLS))
    def take_lease(self, name: str, ttl: int) -> None:
        self._take(name, self.newcomer(), ttl)

    @rule(name=st.sampled_from("ab"), ttl=st.sampled_from(TTLS))
    def take_again(self, name: str, ttl: int) -> None:
        """As after a lost answer: what is one's own is found as it is."""
        assume(self.model.show(name).live)
        self._take(name, self.model.show(name).holder, ttl)

    def _take(self, name: str, holder: str, ttl: int) -> None:
        expected = self.model.take(name, holder, ttl)
        place = self.place(name)
        self.same_lease(
            expected,
            self.fleet.each(lambda b: b.leases.take(place, holder, "here", ttl * SECOND)),
        )

    @rule(
        name=st.sampled_from("ab"),
        address=st.sampled_from(ADDRESSES),
        ttl=st.sampled_from(TTLS),
        patience=st.sampled_from([10, 600]),
    )
    def enqueue(self, name: str, address: str, ttl: int, patience: int) -> None:
        """Asked twice, as after a lost answer, it keeps one place."""
        holder = self.newcomer()
        ticket = self.model.enqueue(name, holder, address, ttl, patience)
        wait = (ttl * SECOND, patience * SECOND)
        for _ in range(2):
            found = self.fleet.each(
                lambda b: b.leases.enqueue(self.place(name), holder, address, *wait)
            )
            self.same_number(ticket, found)
        self.tickets.append((name, ticket))

    @rule(
        name=st.sampled_from("ab"),
        which=st.sampled_from(["current", "current", "older", "none"]),
        address=st.sampled_from(ADDRESSES),
    )
    def pass_on(self, name: str, which: str, address: str) -> None:
        token, tokens = self._token(name, which)
        expected = self.model.pass_on(name, token, address)
        found = self.fleet.each(
            lambda b, token: b.leases.pass_on(self.place(name), token, address), tokens
        )
        self.same_lease(expected, found)

    def _token(self, name: str, which: str) -> tuple[int, list[int]]:
        token = self.model.lease(name).token
        if which == "older":
            token = min(self.numbers)
        return (-1, [-1] * 4) if which == "none" else (token, self.numbers[token])

    @rule(
        name=st.sampled_from("ab"),
        which=st.sampled_from(["current", "older"]),
        ttl=st.sampled_from(TTLS),
    )
    def extend(self, name: str, which: str, ttl: int) -> None:
        token, tokens = self._token(name, which)
        expected = self.model.extend(name, token, ttl)
        found = self.fleet.each(
            lambda b, token: b.leases.extend(self.place(name), token, ttl * SECOND), tokens
        )
        assert found == [expected] * 4

    @rule(which=st.integers(0, 20))
    def withdraw(self, which: int) -> None:
        assume(self.tickets)
        name, ticket = self.tickets[which % len(self.tickets)]
        self.model.withdraw(name, ticket)
        self.fleet.each(
            lambda b, number: b.leases.withdraw(self.place(name), number), self.numbers[ticket]
        )

    @invariant()
    def leases_agree(self) -> None:
        for name in "ab":
            place = self.place(name)
            self.same_lease(
                self.model.show(name), self.fleet.each(lambda b, p=place: b.leases.peek(p))
            )

    # ------------------------------------------------------------------ slots

    @rule(
        holder=st.sampled_from("pqrst"),
        limit=st.sampled_from([1, 2, 2, 3]),
        ttl=st.sampled_from(TTLS),
    )
    def take_slot(self, holder: str, limit: int, ttl: int) -> None:
        place = self.place("slots")
        expected = self.model.take_slot("slots", limit, holder, ttl)
        found = self.fleet.each(lambda b: b.slots.take(place, limit, holder, ttl * SECOND))
        assert [token is None for token in found] == [expected is None] * 4
        if expected is not None:
            self.same_number(expected, found)

    @rule(which=st.integers(0, 5), release=st.booleans(), ttl=st.sampled_from(TTLS))
    def extend_or_release_slot(self, which: int, release: bool, ttl: int) -> None:
        held = self.model.live_slots("slots")
        assume(held)
        holder = sorted(held)[which % len(held)]
        token = held[holder][0]
        tokens, place = self.numbers[token], self.place("slots")
        if release:
            del held[holder]
            for expected in (True, False):
                found = self.fleet.each(lambda b, t: b.slots.release(place, holder, t), tokens)
                assert found == [expected] * 4
            return
        held[holder] = (token, self.model.now + ttl)
        extended = self.fleet.each(
            lambda b, t: b.slots.extend(place, holder, t, ttl * SECOND), tokens
        )
        assert extended == [True] * 4

    # ------------------------------------------------------------------ marks, rates, time

    @rule(key=st.sampled_from("xy"), ttl=st.sampled_from(TTLS), mark=st.booleans())
    def see(self, key: str, ttl: int, mark: bool) -> None:
        place = self.place(key)
        seen = self.fleet.each(lambda b: b.seen.is_seen(place))
        assert seen == [self.model.is_seen(key)] * 4
        if mark:
            self.model.marks[key] = self.model.now + ttl
            self.fleet.each(lambda b: b.seen.mark(place, ttl * SECOND))
        else:
            expected = self.model.first_time(key, ttl)
            firsts = self.fleet.each(lambda b: b.seen.first_time(place, ttl * SECOND))
            assert firsts == [expected] * 4

    @rule(which=st.sampled_from([0, 1]))
    def hit(self, which: int) -> None:
        limit, per = LIMITS[which]
        rate = rate_of(limit, per * SECOND)

        async def ask(backend: Backend) -> tuple[bool, int]:
            paced = await backend.rates.hit(self.place(f"rate{which}"), 1, *rate)
            answer = verdict(paced.allowed > 0, paced.arrival_us, paced.now, rate)
            return answer.allowed, answer.remaining

        assert self.fleet.each(ask) == [self.model.hit(f"rate{which}", limit, per)] * 4

    @rule(seconds=st.sampled_from([1, 1, 3, 5, 60, 1200]))
    def advance(self, seconds: int) -> None:
        self.fleet.clock.advance(seconds)
        self.model.now += seconds


@pytest.fixture
def fleet(every_url: list[str]) -> Iterator[Fleet]:
    ships = Fleet(every_url)
    yield ships
    ships.close()


@pytest.mark.slow
@pytest.mark.full_size
def test_every_backend_agrees_with_the_model(fleet: Fleet) -> None:
    """Whatever is asked in whatever order, all four give the answers of plain dictionaries."""
    run_machine(Lockstep, fleet, EXAMPLES, STEPS)
