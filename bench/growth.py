"""Claims while the store grows to a million records, and while cleanup deletes many of them.

Both sizes are open in one process and take turns in short slices, so that whatever else happens
on the machine strikes both alike. The records are written by plain SQL into the tables that
Towline's own migrations made, as they come about in life: in the order of time, keys at random.

After a checkpoint PostgreSQL logs each page whole when it is first touched, and in a large index
nearly every new key touches another page until most of them have been. So it is measured twice:
when six in a hundred records have come and gone since the checkpoint, which touches every page
about six times, and at its worst moment, right after one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable

import towline
from bench.load import CALLERS, Stopwatch, drive, random_keys
from bench.plan import Bench, Metrics
from bench.raw_sqlite import new_file
from tests.servers import at_database, create_database

SMALL, LARGE, EXPIRED = 10_000, 1_000_000, 100_000
QUICK_LARGE, QUICK_EXPIRED = 200_000, 20_000

_LAPS = 6
_SLICE = {1: 300, CALLERS: 600}
_ROOM = 10 * LARGE
_PASSING_PERCENT = 6
_PACED_CALLERS = 8
_PAUSE_SECONDS = 0.002
_QUIET_SECONDS = 1.0

_INSERT = """
INSERT INTO once_records
  (tenant, key, source, status, token, holder, attempts, payload_hash, field_digests, response,
   tombstone, definitive, on_crash, created_us, updated_us, lock_expires_us, expires_us, awaited)
SELECT 'bench', 'github:' || b.digest, 'github', 'completed', b.n, 'filled:' || b.n, 1,
  b.digest || b.digest, '["0123456789abcdef",{{"/n":"0123456789abcdef"}}]', '{{"body":"' ||
  b.digest || b.digest || b.digest || b.digest || b.digest || b.digest || '"}}',
  0, 0, 'retry', {now} - 60000000, {now} - 60000000, {now} - 60000000, {now} + {keep}, ''
FROM (SELECT {digest} AS digest, n FROM {numbers}) AS b
"""

Fill = Callable[[str, int, bool], Awaitable[None]]
Handle = towline.Idempotency


def _insert(now: int, expired: bool, digest: str, numbers: str) -> str:
    keep = "-3600000000 + b.n" if expired else "86400000000 + b.n"
    return _INSERT.format(now=now, keep=keep, digest=digest, numbers=numbers)


async def _fill_sqlite(url: str, count: int, expired: bool) -> None:
    await asyncio.to_thread(_fill_file, url.removeprefix("sqlite:///"), count, expired)


def _fill_file(path: str, count: int, expired: bool) -> None:
    numbers = (
        f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) "
        "SELECT n FROM c)"
    )
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA cache_size=-500000")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute(_insert(_now_us(), expired, "lower(hex(randomblob(16)))", numbers))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    with open(path, "rb") as file:
        os.fsync(file.fileno())


async def _fill_postgres(url: str, count: int, expired: bool) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    digest, numbers = "md5(random()::text)", f"generate_series(1, {count}) AS n"
    await connection.execute(_insert(_now_us(), expired, digest, numbers))
    await connection.execute("VACUUM ANALYZE once_records")
    await connection.execute("CHECKPOINT")
    if not expired:
        passing = f"generate_series(1, {count * _PASSING_PERCENT // 100}) AS n"
        await connection.execute(_insert(_now_us(), True, digest, passing))
        await connection.execute(f"DELETE FROM once_records WHERE expires_us < {_now_us()}")
    await connection.close()


async def _checkpoint(url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute("CHECKPOINT")
    await connection.close()


def _now_us() -> int:
    return time.time_ns() // 1000


async def sqlite(bench: Bench) -> Metrics:
    urls = [f"sqlite:///{new_file(bench)}" for _ in range(2)]
    return await _measure(bench, urls[0], urls[1], _fill_sqlite)


async def postgres(bench: Bench) -> Metrics:
    """The larger database is one more beside the sample's own; the runner drops both."""
    larger = at_database(bench.postgres, f"{bench.postgres.rpartition('/')[2]}_large")
    create_database(bench.postgres, larger.rpartition("/")[2])
    return await _measure(bench, bench.postgres, larger, _fill_postgres, _checkpoint)


async def _measure(
    bench: Bench,
    small: str,
    large: str,
    fill: Fill,
    checkpoint: Callable[[str], Awaitable[None]] | None = None,
) -> Metrics:
    size = QUICK_LARGE if bench.quick else LARGE
    for url, count in ((small, SMALL), (large, size)):
        await (await _open(url)).aclose()  # makes the tables
        await fill(url, count, False)
    metrics: Metrics = {"large.records": size}
    async with (
        towline.Idempotency.open(small, max_items=_ROOM) as few,
        towline.Idempotency.open(large, max_items=_ROOM) as many,
    ):
        for name, handle in (("small", few), ("large", many)):
            began = time.perf_counter()
            await _claimer(handle)(random_keys(1)[0])
            metrics[f"{name}.first_ms"] = (time.perf_counter() - began) * 1e3
            await drive(_claimer(handle), random_keys(200), CALLERS, 5)
        metrics |= await _take_turns({"small": few, "large": many})
        if checkpoint is not None:
            await checkpoint(large)
            fresh = await _take_turns({"small": few, "large": many})
            metrics |= {f"fresh.{name}": value for name, value in fresh.items()}
        metrics |= await _clean_up(bench, large, many, fill)
    return metrics


async def _open(url: str) -> Handle:
    return await towline.Idempotency.open(url, max_items=_ROOM)


def _claimer(handle: Handle) -> Callable[[str], Awaitable[None]]:
    async def claim(key: str) -> None:
        assert (await handle.check_and_set(key, "bench", {"n": 1})).status == "new"

    return claim


async def _take_turns(handles: dict[str, Handle]) -> Metrics:
    metrics: Metrics = {}
    for callers, count in _SLICE.items():
        watches = {name: Stopwatch(0) for name in handles}
        for _ in range(_LAPS):
            for name, handle in handles.items():
                lap = await drive(_claimer(handle), random_keys(count), callers, 10)
                watches[name].latencies += lap.latencies
                watches[name].ended += lap.ended - lap.started
        for name, watch in watches.items():
            metrics |= watch.metrics(f"{name}.c{callers}")
        small, large = (metrics[f"{name}.c{callers}.p50_us"] for name in handles)
        metrics[f"growth.c{callers}"] = large / small
    return metrics


async def _clean_up(bench: Bench, url: str, handle: Handle, fill: Fill) -> Metrics:
    count = QUICK_EXPIRED if bench.quick else EXPIRED
    await fill(url, count, True)
    quiet = await _paced_claims(handle, asyncio.sleep(_QUIET_SECONDS))
    deleted: list[int] = []

    async def clean() -> None:
        deleted.append(await handle.cleanup_expired())

    busy = await _paced_claims(handle, clean())
    assert deleted[0] >= count, deleted
    seconds = busy.ended - busy.started
    return {
        "cleanup.records_per_second": count / seconds,
        **quiet.metrics("quiet"),
        **busy.metrics("cleanup"),
    }


async def _paced_claims(handle: Handle, meanwhile: Awaitable[None]) -> Stopwatch:
    """A few callers claim with short pauses for as long as something else goes on."""
    watch = Stopwatch(0)
    claim = _claimer(handle)
    going_on = asyncio.ensure_future(meanwhile)

    async def caller() -> None:
        while not going_on.done():
            for key in random_keys(16):
                began = time.perf_counter()
                await claim(key)
                watch.latencies.append(time.perf_counter() - began)
                await asyncio.sleep(_PAUSE_SECONDS)

    await asyncio.gather(going_on, *(caller() for _ in range(_PACED_CALLERS)))
    watch.stop()
    return watch
