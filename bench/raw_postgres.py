"""PostgreSQL without Towline: the same two statements through pgbench, pools and one pump.

The floor coalesces: whatever callers wait while a statement is under way share the next one, as
arrays through unnest, on one connection.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.cycles import RESULT_BYTES, TOKEN, Client
from bench.load import CALLERS
from bench.plan import Bench, Metrics
from tests.servers import postgres_binary, psql

POOL = 8

# Plans are made while the table is empty, and then kept: they must not scan it when it has grown.
SESSION = {
    "jit": "off", "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
}  # fmt: skip

TABLE = """
CREATE TABLE idem (
    key text PRIMARY KEY, state smallint NOT NULL, token text, result bytea,
    at timestamptz DEFAULT now()
)
"""
CLAIM = (
    "INSERT INTO idem (key, state, token) VALUES ($1, 0, $2) ON CONFLICT DO NOTHING RETURNING key"
)
COMPLETE = "UPDATE idem SET state = 1, result = $3 WHERE key = $1 AND token = $2 AND state = 0"
STORED = "SELECT result FROM idem WHERE key = $1"

CLAIM_ALL = """
INSERT INTO idem (key, state, token) SELECT k, 0, $2 FROM unnest($1::text[]) AS k
ON CONFLICT DO NOTHING RETURNING key
"""
COMPLETE_ALL = """
UPDATE idem SET state = 1, result = b.r FROM unnest($1::text[], $2::bytea[]) AS b(k, r)
WHERE key = b.k AND token = $3 AND state = 0
"""
STORED_ALL = "SELECT key, result FROM idem WHERE key = ANY($1::text[])"

_PGBENCH = f"""
\\set n random(1, 9000000000000000)
INSERT INTO idem (key, state, token) VALUES ('pgbench:' || :n, 0, '{TOKEN}')
ON CONFLICT DO NOTHING RETURNING key;
UPDATE idem SET state = 1, result = convert_to('{"x" * 200}', 'UTF8')
WHERE key = 'pgbench:' || :n AND token = '{TOKEN}' AND state = 0;
"""


def pgbench(bench: Bench) -> Metrics:
    """PostgreSQL's own client in C: 32 connections, prepared statements, one commit each."""
    psql(bench.postgres, TABLE)
    script = bench.folder / "cycle.sql"
    script.write_text(_PGBENCH)
    metrics: Metrics = {}
    for clients, seconds in ((1, bench.seconds(2)), (CALLERS, bench.seconds(3))):
        whole = str(max(1, round(seconds)))
        command = [postgres_binary("pgbench"), "-n", "-M", "prepared", "-f", str(script)]
        command += ["-c", str(clients), "-j", "1", "-T", whole, bench.postgres]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        rate = re.search(r"tps = ([\d.]+)", done.stdout)
        latency = re.search(r"latency average = ([\d.]+) ms", done.stdout)
        assert rate is not None, done.stdout
        assert latency is not None, done.stdout
        metrics[f"random.c{clients}.ops"] = float(rate[1])
        metrics[f"random.c{clients}.mean_us"] = float(latency[1]) * 1e3
    return metrics


@asynccontextmanager
async def asyncpg_pool(bench: Bench) -> AsyncIterator[Client]:
    import asyncpg

    pool = await asyncpg.create_pool(bench.postgres, min_size=POOL, max_size=POOL)
    await pool.execute(TABLE)

    async def first(key: str) -> None:
        async with pool.acquire() as connection:
            assert await connection.fetchval(CLAIM, key, TOKEN) == key
            await connection.execute(COMPLETE, key, TOKEN, RESULT_BYTES)

    async def again(key: str) -> None:
        async with pool.acquire() as connection:
            assert await connection.fetchval(CLAIM, key, TOKEN) is None
            assert await connection.fetchval(STORED, key) == RESULT_BYTES

    yield Client(first, again)
    await pool.close()


@asynccontextmanager
async def psycopg_pool(bench: Bench) -> AsyncIterator[Client]:
    from bench.peers import load

    options = {"autocommit": True, "prepare_threshold": 1}
    pool = load("psycopg_pool").AsyncConnectionPool(
        bench.postgres, min_size=POOL, max_size=POOL, kwargs=options, open=False
    )
    await pool.open(wait=True)
    claim, complete, stored = map(positional, (CLAIM, COMPLETE, STORED))
    async with pool.connection() as connection:
        await connection.execute(TABLE)

    async def first(key: str) -> None:
        async with pool.connection() as connection:
            claimed = await connection.execute(claim, {"p1": key, "p2": TOKEN})
            assert await claimed.fetchone() == (key,)
            await connection.execute(complete, {"p1": key, "p2": TOKEN, "p3": RESULT_BYTES})

    async def again(key: str) -> None:
        async with pool.connection() as connection:
            claimed = await connection.execute(claim, {"p1": key, "p2": TOKEN})
            assert await claimed.fetchone() is None
            found = await (await connection.execute(stored, {"p1": key})).fetchone()
            assert bytes(found[0]) == RESULT_BYTES

    yield Client(first, again)
    await pool.close()


def positional(statement: str) -> str:
    """The statement with psycopg's marks for its parameters, in binary, which is its fastest."""
    return re.sub(r"\$(\d)", r"%(p\1)b", statement)


class _Pump:
    """One connection, one statement at a time, over all the callers that wait."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._claims: list[tuple[str, asyncio.Future[bytes | None]]] = []
        self._results: list[tuple[str, asyncio.Future[bytes | None]]] = []
        self._awake = asyncio.Event()

    def claim(self, key: str) -> asyncio.Future[bytes | None]:
        return self._submit(self._claims, key)

    def complete(self, key: str) -> asyncio.Future[bytes | None]:
        return self._submit(self._results, key)

    def _submit(
        self, queue: list[tuple[str, asyncio.Future[bytes | None]]], key: str
    ) -> asyncio.Future[bytes | None]:
        future: asyncio.Future[bytes | None] = self._loop.create_future()
        queue.append((key, future))
        self._awake.set()
        return future

    async def run(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            claims, self._claims = self._claims, []
            if claims:
                await self._claim_all(claims)
            results, self._results = self._results, []
            if results:
                keys = [key for key, _ in results]
                await self._connection.execute(
                    COMPLETE_ALL, keys, [RESULT_BYTES] * len(keys), TOKEN
                )
                for _, future in results:
                    future.set_result(None)

    async def _claim_all(self, claims: list[tuple[str, asyncio.Future[bytes | None]]]) -> None:
        keys = [key for key, _ in claims]
        won = {row[0] for row in await self._connection.fetch(CLAIM_ALL, keys, TOKEN)}
        lost = [key for key in keys if key not in won]
        stored = dict(await self._connection.fetch(STORED_ALL, lost)) if lost else {}
        for key, future in claims:
            future.set_result(stored.get(key))


@asynccontextmanager
async def coalesced(bench: Bench) -> AsyncIterator[Client]:
    import asyncpg

    connection = await asyncpg.connect(bench.postgres, server_settings=SESSION)
    await connection.execute(TABLE)
    pump = _Pump(connection)
    running = asyncio.create_task(pump.run())

    async def first(key: str) -> None:
        assert await pump.claim(key) is None
        await pump.complete(key)

    async def again(key: str) -> None:
        assert await pump.claim(key) == RESULT_BYTES

    yield Client(first, again)
    running.cancel()
    await connection.close()
