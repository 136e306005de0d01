"""What must be true of leases, their queues, slots and rates after each commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from towline_once.ports import SlotStore
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import WORLD, Node, current


class _Lease(NamedTuple):
    token: int
    holder: str
    ticket: int
    expires_us: int


_FREE = _Lease(0, "", 0, 0)


class LeaseWatch:
    """Leases: a token is granted once, for its time and no longer, and in the order of tickets."""

    tables = frozenset({"once_leases"})

    def __init__(self, stage: Stage, longest_seconds: float) -> None:
        self._stage = stage
        self._longest_us = round(longest_seconds * 1e6)
        self._known: dict[str, _Lease] = {}
        self._at_work: dict[int, tuple[Node, int]] = {}

    @contextmanager
    def work(self, token: int) -> Iterator[None]:
        """A caller works under this token, and has to be held to account unless it sleeps."""
        node = current.get()
        self._at_work[token] = (node, node.pauses)
        try:
            yield
        finally:
            del self._at_work[token]

    def committed(self, db: Any, names: Sequence[str]) -> None:
        self._nobody_works_on()
        rows = db.execute("SELECT name, token, holder, ticket, expires_us FROM once_leases")
        for name, *fields in rows.fetchall():
            before, after = self._known.get(name, _FREE), _Lease(*fields)
            if before != after:
                self._follows(db, name, before, after, names)
            self._known[name] = after if after.holder else after._replace(holder=before.holder)

    def _nobody_works_on(self) -> None:
        """Work ends before its lease does, also if no other caller wants it."""
        now = self._stage.server.clock.now_us()
        for name, lease in self._known.items():
            node, pauses = self._at_work.get(lease.token, (WORLD, -1))
            if lease.expires_us > now or node.pauses != pauses or not node.alive:
                continue
            late = (now - lease.expires_us) / 1e6
            honest = self._stage.jumped or not lease.expires_us
            self._stage.expect(honest, f"{node} works on {name} {late:.3f} s after its lease")

    def _follows(
        self, db: Any, name: str, before: _Lease, after: _Lease, names: Sequence[str]
    ) -> None:
        expect, now = self._stage.expect, self._stage.server.clock.now_us()
        expect(after.token >= before.token, f"the token of {name} went back to {after.token}")
        if after.token == before.token and after.holder and before.holder:
            same = after.holder == before.holder
            expect(same, f"{name}: two holders of token {after.token}")
        left = (after.expires_us - now) / 1e6
        expect(left <= self._longest_us / 1e6, f"{name} is held for {left:.1f} s more")
        expect(bool(after.holder) or left <= 0, f"{name} is held by nobody for {left:.1f} s")
        if after.holder and after.token != before.token:
            self._in_order(db, name, before, after, "pass on" in names)

    def _in_order(self, db: Any, name: str, before: _Lease, after: _Lease, passed_on: bool) -> None:
        now, expect = self._stage.server.clock.now_us(), self._stage.expect
        queue = db.execute(
            "SELECT ticket, expires_us FROM once_waiters WHERE name = ? ORDER BY ticket", (name,)
        ).fetchall()
        waiting = [ticket for ticket, until in queue if until > now and ticket > before.ticket]
        if passed_on:
            expect(after.ticket > before.ticket, f"ticket {after.ticket} of {name} comes again")
            gone = any(ticket == after.ticket and until <= now for ticket, until in queue)
            expect(not gone, f"{name} was passed on to {after.holder}, whose wait was over")
            waiting = [ticket for ticket in waiting if ticket < after.ticket]
        expect(not waiting, f"{after.holder} has {name} before the tickets {waiting}")


class SlotWatch:
    """Slots: no more live holders than there may be when one comes, and each has one."""

    tables = frozenset({"once_slots"})

    def __init__(self, stage: Stage, most: int) -> None:
        self._stage = stage
        self._most = most
        self._limits: dict[str, int] = {}
        self._newest = 0

    def noted(self, slots: SlotStore) -> SlotStore:
        """The same slots; how many each holder was told that there are is written down."""
        return _Noted(slots, self._limits)

    def committed(self, db: Any, names: Sequence[str]) -> None:
        now = self._stage.server.clock.now_us()
        live = db.execute(
            "SELECT name, holder, token FROM once_slots WHERE expires_us > ? ORDER BY token",
            (now,),
        ).fetchall()
        holders = {holder for _, holder, _ in live}
        self._stage.expect(len(live) == len(holders), "one holds two slots")
        if live:
            _, holder, newest = live[-1]
            limit = self._limits.get(holder, self._most)
            limit = limit if newest > self._newest else self._most
            self._stage.expect(len(live) <= limit, f"{len(live)} hold slots, of {limit}")
            self._newest = max(newest, self._newest)


class _Noted:
    def __init__(self, slots: SlotStore, limits: dict[str, int]) -> None:
        self._slots = slots
        self._limits = limits
        self.extend, self.release = slots.extend, slots.release

    async def take(self, name: str, limit: int, holder: str, ttl_us: int) -> int | None:
        self._limits[holder] = limit
        return await self._slots.take(name, limit, holder, ttl_us)


class RateWatch:
    """Rates: no caller is let through who would be early by more than the whole period."""

    tables = frozenset({"once_rates"})

    def __init__(self, stage: Stage, key: str, per_seconds: float) -> None:
        self._stage = stage
        self._key = key
        self._per_us = round(per_seconds * 1e6)

    def committed(self, db: Any, names: Sequence[str]) -> None:
        if "hit" not in names:
            return
        now = self._stage.server.clock.now_us()
        query = "SELECT arrival_us FROM once_rates WHERE key = ?"
        for (arrival_us,) in db.execute(query, (self._key,)):
            ahead = (arrival_us - now) / 1e6
            most = self._per_us / 1e6
            self._stage.expect(ahead <= most, f"{self._key} is {ahead:.3f} s ahead of its rate")
