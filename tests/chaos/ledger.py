"""What the ledgers say when the storm is over, and what was seen of each job on the way.

A trigger in PostgreSQL, put there by the run and unknown to the product, notes each move of a job
in the transaction that makes it. The deliveries and their jobs are another ledger, the log of each
pull request a third, and the comments at the forge the one outside.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from tests.chaos.town import Answer, Place, Town
from tests.e2e.ledger import LEDGER, UNFINISHED, looking_at
from tests.e2e.senders import Crowd, Parcel
from tests.servers import psql

Rows = list[tuple[Any, ...]]
STALLED_SECONDS = 120.0
"""For so long nothing may change while jobs are left."""
_CONNECT_SECONDS = 10.0
_WAKING = 2.0
_AWAY = (
    *(OSError, TimeoutError, asyncpg.PostgresError),
    *(asyncpg.InterfaceError, asyncpg.InternalClientError),
)

_WATCH = """
CREATE TABLE chaos_moves (
    seq bigserial PRIMARY KEY, job text, was text, became text, old_token bigint, token bigint
);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state OR NEW.token <> OLD.token THEN
        INSERT INTO chaos_moves (job, was, became, old_token, token)
        VALUES (OLD.id, OLD.state, NEW.state, OLD.token, NEW.token);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_watch AFTER UPDATE ON towline_jobs
    FOR EACH ROW EXECUTE FUNCTION chaos_note();
"""
_WRONG_MOVES = """
SELECT job, was, became, old_token, token FROM chaos_moves
WHERE was IN ('done', 'dead') OR token < old_token
   OR (became = 'running' AND (was <> 'queued' OR token <= old_token))
   OR (was = 'running' AND token <> old_token)
"""
_ENDED_TWICE = """
SELECT job, count(*) FROM chaos_moves WHERE became IN ('done', 'dead')
GROUP BY job HAVING count(*) > 1
"""
_STATE = """
SELECT (SELECT count(*) FROM towline_jobs WHERE state IN ('queued', 'running')),
       (SELECT coalesce(max(seq), 0) FROM chaos_moves)
"""
_KNOWN = "SELECT repo, number FROM towline_prs"
_EVENTS = """
SELECT repo, number, count(*) FROM towline_pr_events
WHERE event_type = $1 AND payload::json ->> 'anomaly' IS NULL
  AND payload::json ->> 'repeated' IS NULL
GROUP BY repo, number
"""
_DEAD = "SELECT id, kind, error, reason FROM towline_jobs WHERE state = 'dead'"


async def watch(url: str) -> None:
    """Make the tables, and have their moves noted."""
    async with looking_at(url):
        await asyncio.to_thread(psql, url, _WATCH)


async def rows(url: str, query: str, *values: Any) -> Rows:
    connection = await asyncpg.connect(url, timeout=_CONNECT_SECONDS)
    try:
        return [tuple(row) for row in await connection.fetch(query, *values, timeout=60)]
    finally:
        await connection.close(timeout=_CONNECT_SECONDS)


class Watch:
    """Looks at the store now and then, past the proxies, as long as there is one."""

    def __init__(self, url: str, town: Town) -> None:
        self._url = url
        self._town = town
        self.unfinished = 0
        self.moves = 0

    async def run(self) -> None:
        while True:
            await self.glance()
            await asyncio.sleep(0.5)

    async def glance(self) -> None:
        try:
            ((self.unfinished, self.moves),) = await rows(self._url, _STATE)
            known = await rows(self._url, _KNOWN)
        except _AWAY:
            return
        self._town.known = frozenset(Place(*row) for row in known)


async def until_quiet(look: Watch) -> bool:
    """Whether all jobs have ended; False if nothing has moved for long while some are left."""
    loop = asyncio.get_running_loop()
    seen, patience = (-1, -1), loop.time() + STALLED_SECONDS
    while loop.time() < patience:
        await look.glance()
        now = (look.unfinished, look.moves)
        if now != seen:
            seen, patience = now, loop.time() + STALLED_SECONDS
        elif look.unfinished == 0:
            return True
        await asyncio.sleep(0.5)
    return False


async def small_until_quiet(url: str) -> bool:
    loop = asyncio.get_running_loop()
    seen, patience = -1, loop.time() + STALLED_SECONDS
    async with looking_at(url) as database:
        while loop.time() < patience:
            left = int((await database.run(UNFINISHED, [(0,)]))[0][0])
            if left == 0:
                return True
            if left != seen:
                seen, patience = left, loop.time() + STALLED_SECONDS
            await asyncio.sleep(0.5)
    return False


# ---------------------------------------------------------------------- the ledgers


class Stood(NamedTuple):
    """What was found: how jobs ended, and what should not be."""

    ends: Counter[str]
    violations: list[str]


async def deliveries(url: str, unique: Sequence[Parcel], crowd: Crowd) -> Stood:
    """Each that was taken is there once, beside one job that ended; nobody was told twice."""
    async with looking_at(url) as database:
        found = await database.run(LEDGER, [(0,)])
    stood = Counter(row[0] for row in found)
    sent = {parcel.delivery_id for parcel in unique}
    wrong = [f"{one} was accepted and is lost" for one in sent & set(crowd.answers) - set(stood)]
    wrong += [f"{one} is stored {count} times" for one, count in stood.items() if count > 1]
    wrong += [f"{one} was never sent" for one in set(stood) - sent]
    wrong += [f"{row[0]} has no job" for row in found if row[2] is None]
    wrong += [f"{row[0]} is still {row[2]}" for row in found if row[2] in ("queued", "running")]
    wrong += [
        f"{one} was accepted {said['accepted']} times"
        for one, said in crowd.answers.items()
        if said["accepted"] > 1
    ]
    wrong += [
        f"{count} senders were answered {status}"
        for status, count in crowd.surprises.items()
        if status != 503
    ]
    return Stood(Counter(str(row[2]) for row in found), wrong)


async def moves(url: str) -> list[str]:
    """Epochs that went back, ends that did not last, and jobs that ended twice."""
    wrong = [
        f"job {job} went from {was} to {became}, its token from {old} to {new}"
        for job, was, became, old, new in await rows(url, _WRONG_MOVES)
    ]
    twice = await rows(url, _ENDED_TWICE)
    return wrong + [f"job {job} ended {count} times" for job, count in twice]


async def effects(url: str, town: Town, naps: Sequence[tuple[float, float]]) -> list[str]:
    """Each pull request taken up once, each question received and answered once.

    An answer may be that there is none: then the question's failure is in the log.
    """
    opened, received, failed = [
        {Place(repo, number): count for repo, number, count in await rows(url, _EVENTS, kind)}
        for kind in ("PR_OPENED", "COMMAND_RECEIVED", "COMMAND_FAILED")
    ]
    wrong = [
        f"{place} was taken up {opened.get(place, 0)} times"
        for place in town.pulls
        if opened.get(place, 0) != 1
    ]
    answers = town.answers()
    by_place = Counter(place for place, _ in {(one.place, one.mark) for one in answers})
    sorry = Counter(place for place, _ in {(one.place, one.mark) for one in answers if one.failed})
    for place, asked in town.asked.items():
        if not asked - sorry[place] <= received.get(place, 0) <= asked:
            wrong.append(f"{place}: {asked} questions, {received.get(place, 0)} received")
        if by_place[place] != asked:
            wrong.append(f"{place}: {asked} questions, {by_place[place]} answered")
        if sorry[place] > failed.get(place, 0):
            wrong.append(f"{place}: {sorry[place]} told that it failed, {failed.get(place, 0)} did")
    return wrong + [
        f"{one.place}: the answer {one.mark} was given again" for one in doubled(answers, naps)[0]
    ]


def doubled(
    answers: Sequence[Answer], naps: Sequence[tuple[float, float]]
) -> tuple[list[Answer], list[Answer]]:
    """Answers that were given before, and among them those by somebody who slept meanwhile, apart.

    What happens outside cannot be fenced: a worker that is frozen after it looked for an answer,
    and before it writes one, writes it when it wakes, though another did so meanwhile.
    """
    first: dict[str, float] = {}
    wrong, slept = [], []
    for one in sorted(answers, key=lambda answer: answer.at):
        if one.mark not in first:
            first[one.mark] = one.at
        elif any(
            began <= first[one.mark] <= ended + _WAKING and ended <= one.at for began, ended in naps
        ):
            slept.append(one)
        else:
            wrong.append(one)
    return wrong, slept


async def dead_letters(url: str) -> Counter[str]:
    """By kind and reason."""
    return Counter(
        f"{kind}: {reason or error}" for _, kind, error, reason in await rows(url, _DEAD)
    )
