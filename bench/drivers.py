"""asyncpg beside psycopg 3, on the same statements: one row at a time, and arrays of 100 rows.

Both are given what they are best at: prepared statements, autocommit, binary parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

from bench.cycles import RESULT_BYTES, TOKEN
from bench.load import CALLERS, drive, random_keys
from bench.plan import Bench, Metrics
from bench.raw_postgres import (
    CLAIM,
    CLAIM_ALL,
    COMPLETE_ALL,
    POOL,
    SESSION,
    STORED,
    TABLE,
    positional,
)

_BATCH = 100
_MOST = 40_000

Single = Callable[[str], Awaitable[None]]
Batch = Callable[[list[str]], Awaitable[None]]


async def asyncpg(bench: Bench) -> Metrics:
    import asyncpg as driver

    pool = await driver.create_pool(bench.postgres, min_size=POOL, max_size=POOL)
    connection = await driver.connect(bench.postgres, server_settings=SESSION)
    await connection.execute(TABLE)

    async def insert(key: str) -> None:
        async with pool.acquire() as borrowed:
            assert await borrowed.fetchval(CLAIM, key, TOKEN) == key

    async def insert_alone(key: str) -> None:
        assert await connection.fetchval(CLAIM, key, TOKEN) == key

    async def look_up(key: str) -> None:
        assert await connection.fetch(STORED, key)

    async def insert_all(keys: list[str]) -> None:
        assert len(await connection.fetch(CLAIM_ALL, keys, TOKEN)) == len(keys)

    async def update_all(keys: list[str]) -> None:
        await connection.execute(COMPLETE_ALL, keys, [RESULT_BYTES] * len(keys), TOKEN)

    metrics = await _measure(bench, insert_alone, insert, look_up, insert_all, update_all)
    await pool.close()
    await connection.close()
    return metrics


async def psycopg(bench: Bench) -> Metrics:
    from bench.peers import load

    options = {"autocommit": True, "prepare_threshold": 0}
    pool = load("psycopg_pool").AsyncConnectionPool(
        bench.postgres, min_size=POOL, max_size=POOL, kwargs=options, open=False
    )
    await pool.open(wait=True)
    settings = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    connection = await load("psycopg").AsyncConnection.connect(
        bench.postgres, options=settings, **options
    )
    await connection.execute(TABLE)
    claim, stored, claim_all, complete_all = map(
        positional, (CLAIM, STORED, CLAIM_ALL, COMPLETE_ALL)
    )

    async def insert(key: str) -> None:
        async with pool.connection() as borrowed:
            cursor = await borrowed.execute(claim, {"p1": key, "p2": TOKEN})
            assert await cursor.fetchone() == (key,)

    async def insert_alone(key: str) -> None:
        cursor = await connection.execute(claim, {"p1": key, "p2": TOKEN})
        assert await cursor.fetchone() == (key,)

    async def look_up(key: str) -> None:
        cursor = await connection.execute(stored, {"p1": key})
        assert await cursor.fetchone() is not None

    async def insert_all(keys: list[str]) -> None:
        cursor = await connection.execute(claim_all, {"p1": keys, "p2": TOKEN})
        assert len(await cursor.fetchall()) == len(keys)

    async def update_all(keys: list[str]) -> None:
        results = [RESULT_BYTES] * len(keys)
        await connection.execute(complete_all, {"p1": keys, "p2": results, "p3": TOKEN})

    metrics = await _measure(bench, insert_alone, insert, look_up, insert_all, update_all)
    await pool.close()
    await connection.close()
    return metrics


async def _measure(
    bench: Bench, alone: Single, pooled: Single, look_up: Single, insert: Batch, update: Batch
) -> Metrics:
    keys = random_keys(bench.count(_MOST))
    third = len(keys) // 3
    one = await drive(alone, keys[:third], 1, bench.seconds(0.6))
    many = await drive(pooled, keys[third : 2 * third], CALLERS, bench.seconds(0.8))
    reads = await drive(look_up, keys[: len(one.latencies)], 1, bench.seconds(0.4))
    batches = {str(n): list(rows) for n, rows in enumerate(_batches(random_keys(len(keys))))}

    async def insert_batch(number: str) -> None:
        await insert(batches[number])

    async def update_batch(number: str) -> None:
        await update(batches[number])

    inserted = await drive(insert_batch, list(batches), 1, bench.seconds(0.8))
    written = list(batches)[: len(inserted.latencies)]
    updated = await drive(update_batch, written, 1, bench.seconds(0.8))
    return {
        **one.metrics("insert.c1"),
        **many.metrics("insert.c32"),
        **reads.metrics("read.c1"),
        "batch.insert_rows": inserted.metrics("b")["b.ops"] * _BATCH,
        "batch.update_rows": updated.metrics("b")["b.ops"] * _BATCH,
    }


def _batches(keys: list[str]) -> list[list[str]]:
    supply = iter(keys)
    return list(iter(lambda: list(itertools.islice(supply, _BATCH)), []))
