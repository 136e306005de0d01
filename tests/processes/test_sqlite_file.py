"""One SQLite file, several processes: fair turns, and what SIGKILL leaves behind."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing

from tests.processes.crew import Crew
from towline import Idempotency, keys

PROCESSES = 8
SECONDS = 2.0
LONGEST_WAIT = 1.0
FAIREST = 0.9
ROUNDS = 10
KEYS_PER_ROUND = 40


def integrity(url: str) -> str:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
        return str(db.execute("PRAGMA integrity_check").fetchone()[0])


def jain(counts: list[int]) -> float:
    """1 when all got the same, 1/n when one got everything."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))


def test_eight_processes_take_fair_turns(
    sqlite_url: str, crew: Crew, record_property: Callable[[str, object], None]
) -> None:
    """Nobody starves, no call waits long, nothing fails, and the file stays whole."""
    children = [
        crew.start("hammer", url=sqlite_url, seconds=SECONDS, tasks=4) for _ in range(PROCESSES)
    ]
    for child in children:
        child.hear("ready")
    for child in children:
        child.tell("go")
    outcomes = [child.hear("done") for child in children]
    counts = [outcome["cycles"] for outcome in outcomes]
    longest = max(outcome["longest"] for outcome in outcomes)
    report = f"cycles {counts}, Jain {jain(counts):.3f}, longest wait {longest:.3f} s"
    record_property("fairness", report)
    assert jain(counts) > FAIREST, report
    assert longest < LONGEST_WAIT, report
    assert integrity(sqlite_url) == "ok"


async def test_killed_writers_leave_a_whole_file(sqlite_url: str, crew: Crew) -> None:
    """What was told to be durable is there, once; the rest is absent or unfinished."""
    dice = random.Random(7)
    told: dict[int, int] = {}
    for round_number in range(ROUNDS):
        last = (round_number + 1) * KEYS_PER_ROUND
        child = crew.start("finisher", url=sqlite_url, lock_ttl=0.01, first=0, last=last)
        child.hear("ready")
        heard = [child.hear("completed") for _ in range(dice.randrange(1, KEYS_PER_ROUND - 2))]
        child.kill()
        for fact in heard + child.hear_all():
            assert fact["number"] not in told, "a key was completed twice"
            told[fact["number"]] = fact["token"]
        assert integrity(sqlite_url) == "ok"
    async with Idempotency.open(sqlite_url) as idem:
        for number in range(ROUNDS * KEYS_PER_ROUND):
            record = await idem.get(keys.Api(client_id="crew", request_id=str(number)), "acme")
            if number in told:
                assert record is not None
                assert (record.status, record.response) == ("completed", number)
                assert record.token == told[number]
            else:
                assert record is None or record.status in ("processing", "completed")
