"""What became of each job, and where: written down by a trigger that the product knows nothing of.

Another trigger makes the work of a delivery take a while, as on a disk that is slow, so that there
is work in hand when a machine is lost.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import asyncpg

_SET_UP = """
CREATE TABLE seen_moves (
    seq bigserial PRIMARY KEY, job text, was text, became text, expired boolean,
    host text, at double precision
);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO seen_moves (job, was, became, expired, host, at) VALUES (
        OLD.id, OLD.state, NEW.state,
        OLD.lease_expires_us <= extract(epoch FROM clock_timestamp()) * 1000000,
        split_part(coalesce(NEW.owner, OLD.owner), ':', 1), extract(epoch FROM clock_timestamp()));
    RETURN NULL;
END $$;
CREATE TRIGGER watch_moves AFTER UPDATE ON towline_jobs FOR EACH ROW
    WHEN (NEW.state <> OLD.state OR NEW.token <> OLD.token) EXECUTE FUNCTION note_move();
CREATE FUNCTION take_a_while() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(0.2);
    RETURN NULL;
END $$;
CREATE TRIGGER slow_work BEFORE INSERT ON towline_pr_events FOR EACH STATEMENT
    EXECUTE FUNCTION take_a_while();
"""
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::double precision"
_TAKEN_OVER = """
SELECT lost.job, lost.host, (
    SELECT min(begun.at) FROM seen_moves begun
    WHERE begun.job = lost.job AND begun.seq > lost.seq AND begun.became = 'running')
FROM seen_moves lost
WHERE lost.was = 'running' AND lost.became = 'queued' AND lost.expired
"""
_WAITS = """
SELECT max(first.at - j.created_us / 1000000.0) FROM (
    SELECT job, min(at) AS at FROM seen_moves WHERE became = 'running' GROUP BY job) first
JOIN towline_jobs j ON j.id = first.job
"""
_OLDEST = """
SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)
FROM pg_stat_activity WHERE application_name = 'towline'
"""
_ENDS = "SELECT job, count(*) FROM seen_moves WHERE became IN ('done', 'dead') GROUP BY job"
_LINES = """
SELECT p.repo, p.number, count(e.id) FROM towline_prs p
LEFT JOIN towline_pr_events e ON e.repo = p.repo AND e.number = p.number
    AND e.event_type = 'PR_OPENED'
GROUP BY p.repo, p.number
"""


class TakenOver(NamedTuple):
    """A job whose worker was lost."""

    job: str
    host: str
    begun_at: float | None
    """When somebody else began it, if that was already."""


class Ledger:
    """Over a connection of its own; times are those of the database."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()

    async def set_up(self) -> None:
        await self._connection.execute(_SET_UP)

    async def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self._turn:
            return [tuple(row) for row in await self._connection.fetch(query, *values)]

    async def _number(self, query: str, *values: Any) -> int:
        return int((await self._rows(query, *values))[0][0])

    async def now(self) -> float:
        return float((await self._rows(_CLOCK))[0][0])

    async def is_led(self) -> bool:
        return bool(await self._number("SELECT count(*) FROM once_leases"))

    async def candidates(self) -> int:
        """How many wait to be the leader."""
        return await self._number("SELECT count(*) FROM once_waiters")

    async def in_hand(self, host: str) -> int:
        return await self._number(
            "SELECT count(*) FROM towline_jobs WHERE state = 'running' AND owner LIKE $1 || ':%'",
            host,
        )

    async def begun(self, host: str, since: float = 0.0) -> int:
        return await self._number(
            "SELECT count(*) FROM seen_moves WHERE became = 'running' AND host = $1 AND at > $2",
            host,
            since,
        )

    async def taken_over(self) -> list[TakenOver]:
        return [TakenOver._make(row) for row in await self._rows(_TAKEN_OVER)]

    async def longest_wait(self) -> float:
        """From a job's creation until somebody began it for the first time."""
        return float((await self._rows(_WAITS))[0][0])

    async def sessions(self, address: str) -> int:
        """How many the database still keeps for a machine."""
        return await self._number(
            "SELECT count(*) FROM pg_stat_activity WHERE host(client_addr) = $1", address
        )

    async def ends(self) -> dict[str, int]:
        """How often each job ended."""
        return dict(await self._rows(_ENDS))

    async def opened(self) -> dict[tuple[str, int], int]:
        """How many lines the opening of each pull request left in its log."""
        return {(repo, number): lines for repo, number, lines in await self._rows(_LINES)}

    async def oldest_transaction(self) -> float:
        """How long ago it began, of those that are open now."""
        return float((await self._rows(_OLDEST))[0][0])
