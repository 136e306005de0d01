"""One key, many processes: who runs the handler, who gets its result, who is told to stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.crew import Child, Crew
from towline import Idempotency, keys

TASKS = 16
LOCK_TTL = 2.0
KEY = keys.Api(client_id="crew", request_id="shared")


def effects_in(path: Path) -> list[tuple[str, int]]:
    """What handlers did, in the order in which they did it, with their tokens."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(word, int(token)) for word, token in lines]


def start_callers(crew: Crew, url: str, effects: Path, count: int, **more: float) -> list[Child]:
    settings = {"lock_ttl": 60, "wait": 50, "tasks": TASKS, **more}
    return [
        crew.start("callers", url=url, request="shared", effects=str(effects), **settings)
        for _ in range(count)
    ]


def launch(children: list[Child]) -> None:
    for child in children:
        child.hear("ready")
    for child in children:
        child.tell("go")


def running_among(crew: Crew, children: list[Child]) -> tuple[Child, int]:
    """The child whose handler runs, when all of them have launched their calls."""
    for child in children:
        child.hear("launched")
    holder = crew.first_with_news(children)
    return holder, holder.hear("running")["token"]


def test_64_callers_in_four_processes_run_the_handler_once(
    shared_url: str, crew: Crew, tmp_path: Path
) -> None:
    """One of 64 runs it; 63 get its result, whichever process they are in."""
    effects = tmp_path / "effects"
    children = start_callers(crew, shared_url, effects, 4)
    launch(children)
    holder, token = running_among(crew, children)
    holder.tell("finish")
    outcomes = [child.hear("done") for child in children]
    assert effects_in(effects) == [("start", token), ("finish", token)]
    processed = [flag for outcome in outcomes for flag in outcome["processed"]]
    assert (len(processed), sum(processed)) == (64, 1)
    assert {by for outcome in outcomes for by in outcome["results"]} == {holder.pid}


def test_one_of_many_takes_over_from_a_killed_holder(
    shared_url: str, crew: Crew, tmp_path: Path
) -> None:
    """After SIGKILL in mid-handler one waiter starts it again, with a larger token."""
    effects = tmp_path / "effects"
    first, *others = start_callers(crew, shared_url, effects, 4, lock_ttl=LOCK_TTL)
    launch([first])
    _, dead_token = running_among(crew, [first])
    launch(others)
    first.kill()
    successor, token = running_among(crew, others)
    successor.tell("finish")
    outcomes = [child.hear("done") for child in others]
    assert token > dead_token
    assert effects_in(effects) == [("start", dead_token), ("start", token), ("finish", token)]
    processed = [flag for outcome in outcomes for flag in outcome["processed"]]
    assert (len(processed), sum(processed)) == (3 * TASKS, 1)
    assert {by for outcome in outcomes for by in outcome["results"]} == {successor.pid}


@pytest.mark.parametrize("blocking", [False, True], ids=["waiting", "blocking"])
async def test_a_paused_holder_is_told_that_it_is_stale(
    shared_url: str, crew: Crew, blocking: bool
) -> None:
    """SIGSTOP past the lock: another completes; after SIGCONT the late result is refused."""
    settings = {"url": shared_url, "lock_ttl": LOCK_TTL}
    paused = crew.start("worker", **settings, blocking=blocking, result="older")
    old = paused.hear("running")
    paused.pause()
    successor = crew.start("worker", **settings, blocking=False, result="newer", wait=50)
    new = successor.hear("running")
    successor.tell("finish")
    assert successor.hear("done") == {"event": "done", "result": "newer", "processed": True}
    paused.tell("finish")
    paused.resume()
    assert paused.hear("refused")["error"] == "Stale"
    assert new["token"] > old["token"]
    assert (old["attempts"], new["attempts"]) == (1, 2)
    async with Idempotency.open(shared_url) as idem:
        record = await idem.get(KEY, "acme")
    assert record is not None
    assert (record.status, record.response, record.token) == ("completed", "newer", new["token"])
