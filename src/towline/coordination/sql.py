"""Coordination over SQL: calls of one kind share a statement, the statements decide."""

from __future__ import annotations

import itertools
import secrets
from operator import itemgetter
from typing import Any

from towline.coordination import sql_statements as q
from towline.coordination.memory import GRACE_US
from towline.ports.coordination import Document, Grant, Paced
from towline.store import rate_statements as rates
from towline.store.coalesce import Coalescer
from towline.store.sql import Database, Row, Statement

_RACES = 8


class _Batched:
    """Coalescers for statements whose answers carry the identity of their row."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _by(self, statement: Statement, mine: int, theirs: int = 0) -> Coalescer[Row, Row | None]:
        """Match column `mine` of an item with column `theirs` of an answer, as a key."""

        async def fly(items: list[Row]) -> list[Row | None]:
            answers = {row[theirs]: row for row in await self._database.run(statement, items)}
            return [answers.get(item[mine]) for item in items]

        key = (lambda item: item[mine]) if statement.writes else None
        return Coalescer(fly, key=key)

    async def _sweep(self, statement: Statement, limit: int) -> int:
        return len(await self._database.run(statement, [(limit,)]))


class SqlLeases(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._takes = self._by(q.TAKE, 0)
        self._tickets = self._by(q.ENQUEUE, 1)
        self._handovers = self._by(q.PASS_ON, 0)
        self._extensions = self._by(q.EXTEND, 0)
        self._withdrawals = self._by(q.WITHDRAW, 1)
        self._peeks = self._by(q.PEEK, 0)

    async def take(self, name: str, holder: str, address: str, ttl_us: int) -> Grant | None:
        return _grant(await self._takes.submit((name, holder, address, ttl_us)))

    async def enqueue(
        self, name: str, holder: str, address: str, ttl_us: int, patience_us: int
    ) -> int:
        row = await self._tickets.submit((name, holder, address, ttl_us, patience_us))
        if row is not None:
            return int(row[1])
        rows = await self._database.run(q.FIND_TICKET, [(name, holder)])
        return int(rows[0][0]) if rows else 0

    async def pass_on(self, name: str, token: int, address: str) -> Grant | None:
        return _grant(await self._handovers.submit((name, token, address, GRACE_US)))

    async def extend(self, name: str, token: int, ttl_us: int) -> bool:
        return await self._extensions.submit((name, token, ttl_us)) is not None

    async def withdraw(self, name: str, ticket: int) -> None:
        await self._withdrawals.submit((name, ticket))

    async def peek(self, name: str) -> Grant | None:
        return _grant(await self._peeks.submit((name,)))

    async def sweep(self, limit: int) -> int:
        waiters = await self._sweep(q.SWEEP_WAITERS, limit)
        return waiters + await self._sweep(q.SWEEP_LEASES, limit)


def _grant(row: Row | None) -> Grant | None:
    return None if row is None else Grant._make(row)


class SqlSlots(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._takes = self._one_at_a_time(q.TAKE_SLOT)
        self._extensions = self._one_at_a_time(q.EXTEND_SLOT)
        self._releases = self._one_at_a_time(q.RELEASE_SLOT)

    def _one_at_a_time(self, statement: Statement) -> Coalescer[Row, list[Row]]:
        """A caller that leaves does not break off its statement, and the next on its name waits."""

        async def fly(items: list[Row]) -> list[list[Row]]:
            return [await self._database.run(statement, [item]) for item in items]

        return Coalescer(fly, key=itemgetter(0), seats=1, lanes=self._database.lanes)

    async def take(self, name: str, limit: int, holder: str, ttl_us: int) -> int | None:
        """Two processes may pick the same free number: the loser looks again."""
        for _ in range(_RACES):
            rows = await self._takes.submit((name, limit, holder, ttl_us))
            if rows:
                return int(rows[0][1])
            looked = await self._database.run(q.LOOK_AT_SLOTS, [(name,)])
            held = {row[0]: row[1] for row in looked}
            if holder in held:
                return int(held[holder])
            if len(held) >= limit:
                return None
        return None

    async def extend(self, name: str, holder: str, token: int, ttl_us: int) -> bool:
        return bool(await self._extensions.submit((name, holder, token, ttl_us)))

    async def release(self, name: str, holder: str, token: int) -> bool:
        return bool(await self._releases.submit((name, holder, token)))


class SqlSeen(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._process_id = secrets.token_hex(6)
        self._serial = itertools.count(1)
        self._firsts = self._by(q.FIRST_TIME, 0)
        self._marks = self._by(q.MARK, 0)
        self._looks = self._by(q.IS_SEEN, 0)

    def _holder(self) -> str:
        """So that a call repeated after a lost answer knows its own mark."""
        return f"{self._process_id}:{next(self._serial)}"

    async def first_time(self, key: str, ttl_us: int) -> bool:
        return await self._firsts.submit((key, self._holder(), ttl_us)) is not None

    async def mark(self, key: str, ttl_us: int) -> None:
        await self._marks.submit((key, self._holder(), ttl_us))

    async def is_seen(self, key: str) -> bool:
        return await self._looks.submit((key,)) is not None

    async def sweep(self, limit: int) -> int:
        return await self._sweep(q.SWEEP_SEEN, limit)


_Hit = tuple[str, int, int, int]


class SqlRates(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._hits: Coalescer[_Hit, Paced] = Coalescer(self._fly)

    async def hit(self, key: str, hits: int, interval_us: int, burst_us: int) -> Paced:
        return await self._hits.submit((key, hits, interval_us, burst_us))

    async def _fly(self, items: list[_Hit]) -> list[Paced]:
        """Hits on one key become one row; those that fit are the ones that came first."""
        totals: dict[tuple[str, int, int], int] = {}
        for key, hits, interval, burst in items:
            totals[key, interval, burst] = totals.get((key, interval, burst), 0) + hits
        answers: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        for group in _distinct_keys(totals):
            for key, allowed, arrival, now in await self._database.run(rates.HIT, group):
                place = next((k, i, b) for k, _, i, b in group if k == key)
                answers[place] = (allowed, arrival, now)
        return [self._share(item, answers) for item in items]

    @staticmethod
    def _share(item: _Hit, answers: dict[tuple[str, int, int], tuple[int, int, int]]) -> Paced:
        key, hits, interval, burst = item
        left, arrival, now = answers[key, interval, burst]
        mine = min(hits, left)
        answers[key, interval, burst] = (left - mine, arrival, now)
        return Paced(mine, arrival - (left - mine) * interval, now)

    async def sweep(self, limit: int) -> int:
        return await self._sweep(rates.SWEEP_RATES, limit)


def _distinct_keys(totals: dict[tuple[str, int, int], int]) -> list[list[_Hit]]:
    """Groups in which each key stands once: an upsert may touch a row only once."""
    groups: list[dict[str, _Hit]] = [{}]
    for (key, interval, burst), hits in totals.items():
        group = next((g for g in groups if key not in g), None)
        if group is None:
            group = {}
            groups.append(group)
        group[key] = (key, hits, interval, burst)
    return [list(group.values()) for group in groups]


class SqlDocuments(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._reads = self._by(q.READ_DOCUMENT, 0)

    async def read(self, name: str) -> Document:
        row: Any = await self._reads.submit((name,))
        return Document(row[1], row[2], row[3])

    async def swap(self, name: str, version: int, body: str) -> Document | None:
        if version == 0:
            rows = await self._database.run(q.CREATE_DOCUMENT, [(name, body)])
        else:
            rows = await self._database.run(q.REPLACE_DOCUMENT, [(name, version, body)])
        return Document(rows[0][0], body, rows[0][1]) if rows else None
