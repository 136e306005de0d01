"""How many wait for a lock, asked of the store itself."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

from tests.processes.crew import PATIENCE
from tests.servers import psql, redis_command


def queue_length(url: str, name: str) -> int:
    count = f"SELECT count(*) FROM once_waiters WHERE name = '{name}'"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as db:
            return int(db.execute(count).fetchone()[0])
    if url.startswith("postgres"):
        return int(psql(url, count))
    return int(redis_command(url, "ZCARD", f"towline:queue:{name}").lstrip(b":"))


async def until_queued(url: str, name: str, length: int) -> None:
    """Only the store knows that another process has joined the queue, so it is asked again."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(queue_length, url, name) < length:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
