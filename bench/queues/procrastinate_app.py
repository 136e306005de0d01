"""Procrastinate over PostgreSQL, with psycopg's asyncio pool."""

from __future__ import annotations

import os

from bench.peers import load
from bench.queues.marks import mark

_procrastinate = load("procrastinate")
app = _procrastinate.App(
    connector=_procrastinate.PsycopgConnector(
        conninfo=os.environ["BENCH_STORE"], min_size=2, max_size=12
    )
)


@app.task(name="noop")
async def noop(number: int) -> None:
    mark(number)
