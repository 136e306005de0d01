"""Coordination state of one process, for `memory://`. No step awaits, so each is atomic.

It has the same semantics as the other stores, as one test suite shows, and forgets everything at
its end.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from dataclasses import dataclass, field

from towline_once.coordination.rate_limit import pace
from towline_once.metrics import EVICTED_ENTRIES
from towline_once.ports import Clock, Document, Grant, Paced

GRACE_US = 5_000_000

_log = logging.getLogger("towline.coordination")
_tokens = itertools.count(1)


@dataclass(slots=True)
class _Waiter:
    ticket: int
    holder: str
    address: str
    ttl_us: int
    expires_us: int


@dataclass(slots=True)
class _Entry:
    holder: str = ""
    address: str = ""
    token: int = 0
    ticket: int = 0
    expires_us: int = 0
    waiters: list[_Waiter] = field(default_factory=list)

    def idle(self, now: int) -> bool:
        return self.expires_us <= now and not self.waiters


class MemoryLeases:
    """Keeps at most `max_entries` idle names, least recently used first out; never a held one."""

    def __init__(self, clock: Clock, max_entries: int = 1024) -> None:
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._max_entries = max_entries

    async def take(self, name: str, holder: str, address: str, ttl_us: int) -> Grant | None:
        now = self._clock.now_us()
        entry = self._entry(name)
        if entry.expires_us > now:
            return self._grant(name, entry, now) if entry.holder == holder else None
        if self._live_waiters(entry, now):
            return None
        self._assign(entry, holder, address, entry.ticket, now + ttl_us)
        return self._grant(name, entry, now)

    async def enqueue(
        self, name: str, holder: str, address: str, ttl_us: int, patience_us: int
    ) -> int:
        waiters = self._entry(name).waiters
        for waiter in waiters:
            if waiter.holder == holder:
                return waiter.ticket
        ticket = next(_tokens)
        expires = self._clock.now_us() + patience_us
        waiters.append(_Waiter(ticket, holder, address, ttl_us, expires))
        return ticket

    async def pass_on(self, name: str, token: int, address: str) -> Grant | None:
        now = self._clock.now_us()
        entry = self._entry(name)
        if entry.token != token and entry.expires_us > now:
            return None
        waiters = self._live_waiters(entry, now)
        if waiters:
            head = waiters[0]
            entry.waiters.remove(head)
            ttl = head.ttl_us if head.address == address else min(head.ttl_us, GRACE_US)
            self._assign(entry, head.holder, head.address, head.ticket, now + ttl)
        else:
            entry.holder, entry.expires_us = "", 0
            self._evict_idle(now)
        return self._grant(name, entry, now)

    async def extend(self, name: str, token: int, ttl_us: int) -> bool:
        entry = self._entries.get(name)
        if entry is None or entry.token != token or not entry.holder:
            return False
        entry.expires_us = self._clock.now_us() + ttl_us
        return True

    async def withdraw(self, name: str, ticket: int) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            entry.waiters = [w for w in entry.waiters if w.ticket != ticket]

    async def peek(self, name: str) -> Grant | None:
        entry = self._entries.get(name)
        return None if entry is None else self._grant(name, entry, self._clock.now_us())

    async def sweep(self, limit: int) -> int:
        now = self._clock.now_us()
        idle = [name for name, entry in self._entries.items() if entry.idle(now)][:limit]
        for name in idle:
            del self._entries[name]
        return len(idle)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry()
        else:
            self._entries.move_to_end(name)
        return entry

    @staticmethod
    def _live_waiters(entry: _Entry, now: int) -> list[_Waiter]:
        if entry.waiters:
            entry.waiters = [w for w in entry.waiters if w.expires_us > now]
        return entry.waiters

    @staticmethod
    def _assign(entry: _Entry, holder: str, address: str, ticket: int, expires_us: int) -> None:
        entry.holder, entry.address, entry.ticket = holder, address, ticket
        entry.token, entry.expires_us = next(_tokens), expires_us

    @staticmethod
    def _grant(name: str, entry: _Entry, now: int) -> Grant:
        return Grant(
            name, entry.holder, entry.address, entry.token, entry.ticket, entry.expires_us, now
        )

    def _evict_idle(self, now: int) -> None:
        surplus = len(self._entries) - self._max_entries
        if surplus <= 0:
            return
        surplus += self._max_entries // 10
        # A long queue of held names must not be walked at every release.
        oldest = itertools.islice(self._entries.items(), surplus + 16)
        idle = [name for name, entry in oldest if entry.idle(now)][:surplus]
        for name in idle:
            del self._entries[name]
        if idle:
            EVICTED_ENTRIES.labels("lock").inc(len(idle))
            _log.warning(
                "lock_eviction count=%d max_size=%d current_size=%d",
                len(idle), self._max_entries, len(self._entries),
            )  # fmt: skip


class MemorySlots:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, dict[str, tuple[int, int]]] = {}

    async def take(self, name: str, limit: int, holder: str, ttl_us: int) -> int | None:
        now = self._clock.now_us()
        held = {h: slot for h, slot in self._held.get(name, {}).items() if slot[1] > now}
        self._held[name] = held
        if holder in held:
            return held[holder][0]
        if len(held) >= limit:
            return None
        token = next(_tokens)
        held[holder] = (token, now + ttl_us)
        return token

    async def extend(self, name: str, holder: str, token: int, ttl_us: int) -> bool:
        held = self._held.get(name, {})
        if held.get(holder, (0, 0))[0] != token:
            return False
        held[holder] = (token, self._clock.now_us() + ttl_us)
        return True

    async def release(self, name: str, holder: str, token: int) -> bool:
        held = self._held.get(name, {})
        if held.get(holder, (0, 0))[0] != token:
            return False
        del held[holder]
        if not held:
            del self._held[name]
        return True


class MemorySeen:
    """Remembers at most `max_items` keys; when there are more, the oldest half is dropped."""

    def __init__(self, clock: Clock, max_items: int = 10_000) -> None:
        self._clock = clock
        self._max_items = max_items
        self._until: OrderedDict[str, int] = OrderedDict()

    async def first_time(self, key: str, ttl_us: int) -> bool:
        if await self.is_seen(key):
            return False
        await self.mark(key, ttl_us)
        return True

    async def mark(self, key: str, ttl_us: int) -> None:
        self._until[key] = self._clock.now_us() + ttl_us
        self._until.move_to_end(key)
        if len(self._until) > self._max_items:
            self._evict()

    async def is_seen(self, key: str) -> bool:
        return self._until.get(key, 0) > self._clock.now_us()

    async def sweep(self, limit: int) -> int:
        now = self._clock.now_us()
        expired = [key for key, until in self._until.items() if until <= now][:limit]
        for key in expired:
            del self._until[key]
        return len(expired)

    def _evict(self) -> None:
        surplus = len(self._until) - self._max_items // 2
        for _ in range(surplus):
            self._until.popitem(last=False)
        EVICTED_ENTRIES.labels("dedup").inc(surplus)
        _log.warning(
            "dedup_store_eviction count=%d max_size=%d current_size=%d",
            surplus, self._max_items, len(self._until),
        )  # fmt: skip


class MemoryRates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrivals: dict[str, int] = {}

    async def hit(self, key: str, hits: int, interval_us: int, burst_us: int) -> Paced:
        now = self._clock.now_us()
        allowed, arrival = pace(self._arrivals.get(key, 0), now, hits, interval_us, burst_us)
        self._arrivals[key] = arrival
        return Paced(allowed, arrival, now)

    async def sweep(self, limit: int) -> int:
        now = self._clock.now_us()
        idle = [key for key, arrival in self._arrivals.items() if arrival <= now][:limit]
        for key in idle:
            del self._arrivals[key]
        return len(idle)


class MemoryDocuments:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._documents: dict[str, tuple[int, str]] = {}

    async def read(self, name: str) -> Document:
        version, body = self._documents.get(name, (0, ""))
        return Document(version, body, self._clock.now_us())

    async def swap(self, name: str, version: int, body: str) -> Document | None:
        if self._documents.get(name, (0, ""))[0] != version:
            return None
        self._documents[name] = (version + 1, body)
        return Document(version + 1, body, self._clock.now_us())
