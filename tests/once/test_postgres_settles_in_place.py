"""On PostgreSQL a result is written beside its claim, and into no index."""

from __future__ import annotations

import asyncpg

from towline import Claim, Idempotency

IN_PLACE = "SELECT pg_stat_get_xact_tuples_hot_updated('once_records'::regclass)"


async def test_results_leave_the_indexes_alone(postgres_url: str) -> None:
    """Of thirty claims each finds room for its result on its own page."""
    async with Idempotency.open(postgres_url) as idem:
        claims = [await idem.check_and_set(f"jira:{number}", "acme", 0) for number in range(30)]
        assert await settled_in_place(postgres_url, idem, claims) == 30


async def test_a_record_that_ends_much_sooner_moves(postgres_url: str) -> None:
    """A sweep that looks five minutes ahead would find it hours late where its claim put it."""
    async with Idempotency.open(postgres_url, lock_ttl=7200) as idem:
        claim = await idem.check_and_set("jira:1", "acme", 0)
        assert await settled_in_place(postgres_url, idem, [claim]) == 0


async def settled_in_place(url: str, idem: Idempotency, claims: list[Claim]) -> int:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            for claim in claims:
                assert await idem.complete(claim, "done", connection=connection)
            return int(await connection.fetchval(IN_PLACE))
    finally:
        await connection.close()
