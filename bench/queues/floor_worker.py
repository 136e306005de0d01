"""The workers of the floors: `python -m bench.queues.floor_worker KIND PLACE`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sqlite3
import sys
import time

from bench.loops import loop_factory
from bench.queues.floors import BATCH, CHANNEL, DURABLE, bell_of
from bench.queues.marks import mark
from bench.raw_postgres import SESSION

_LEASE_SECONDS = 30
_POLL_SECONDS = 1.0

_SQLITE_CLAIM = f"""
UPDATE jobs SET state = 1, lease = ?, attempts = attempts + 1
WHERE id IN (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT {BATCH}) RETURNING id, number
"""
_SQLITE_DONE = "UPDATE jobs SET state = 2 WHERE id = ? AND state = 1"
_POSTGRES_CLAIM = f"""
WITH due AS (
  SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED)
UPDATE jobs SET state = 1, lease = now() + interval '{_LEASE_SECONDS} s', attempts = attempts + 1
FROM due WHERE jobs.id = due.id RETURNING jobs.id, jobs.number
"""
_POSTGRES_DONE = "UPDATE jobs SET state = 2 WHERE id = ANY($1::bigint[]) AND state = 1"


def work_sqlite(path: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in DURABLE:
        db.execute(pragma)
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bell.bind(bell_of(path))
    bell.settimeout(_POLL_SECONDS)
    while True:
        claimed = db.execute(_SQLITE_CLAIM, (time.time() + _LEASE_SECONDS,)).fetchall()
        if not claimed:
            with contextlib.suppress(TimeoutError):
                bell.recv(64)
            continue
        for _, number in claimed:
            mark(number)
        db.execute("BEGIN IMMEDIATE")
        db.executemany(_SQLITE_DONE, [(job_id,) for job_id, _ in claimed])
        db.execute("COMMIT")


async def work_postgres(url: str) -> None:
    import asyncpg

    working = await asyncpg.connect(url, server_settings=SESSION)
    listening = await asyncpg.connect(url)
    rung = asyncio.Event()
    await listening.add_listener(CHANNEL, lambda *_: rung.set())
    while True:
        rung.clear()
        claimed = await working.fetch(_POSTGRES_CLAIM)
        if not claimed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await rung.wait()
            continue
        for _, number in claimed:
            mark(number)
        await working.execute(_POSTGRES_DONE, [job_id for job_id, _ in claimed])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kind, place = sys.argv[1:]
    if kind == "sqlite":
        work_sqlite(place)
    else:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(work_postgres(place))
