"""`towline demo`: real processes on one SQLite file fight over a delivery, die, freeze, collide.

Every number it prints was counted from what the processes did, and every act checks itself.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import typer
from rich.console import Console
from rich.table import Table

import towline
from towline import keys

_spawn = multiprocessing.get_context("spawn")
_PATIENCE = 20.0
_LOCK_TTL = 1.5
DELIVERY = keys.GitHub(delivery_id="550e8400-e29b-41d4-a716-446655440000")
BODY = {"action": "completed", "check_run": {"conclusion": "failure", "name": "build"}}


class Act(NamedTuple):
    title: str
    outcome: str
    holds: bool


class Stage:
    """A folder with the database and the effects that the handlers had."""

    def __init__(self, folder: str) -> None:
        self.url = f"sqlite:///{Path(folder) / 'demo.db'}"
        self.effects = Path(folder) / "effects"

    def effect(self, line: str) -> None:
        with self.effects.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def count(self, prefix: str) -> int:
        lines = self.effects.read_text(encoding="utf-8").splitlines()
        return sum(line.startswith(prefix) for line in lines)


# ---------------------------------------------------------------------- what the children do


def crowd(folder: str, callers: int, pipe: Connection) -> None:
    """Many callers with one delivery, all at once."""
    stage = Stage(folder)

    async def handler() -> dict[str, int]:
        stage.effect(f"crowd {os.getpid()}")
        await asyncio.sleep(0.2)
        return {"pull_request": 7}

    async def work() -> None:
        async with towline.Idempotency.open(stage.url) as idem:
            calls = [
                idem.process(DELIVERY, "acme", BODY, handler, wait=_PATIENCE)
                for _ in range(callers)
            ]
            outs = await asyncio.gather(*calls)
            same = sum(out.result == {"pull_request": 7} for out in outs)
            pipe.send((sum(out.processed for out in outs), same))

    asyncio.run(work())


def worker(folder: str, delivery: str, pipe: Connection) -> None:
    """One caller that starts the effect, then waits for a word before it finishes it."""
    logging.getLogger("towline").setLevel(logging.CRITICAL)  # the table tells the same
    stage = Stage(folder)

    async def work() -> None:
        async with towline.Idempotency.open(stage.url, lock_ttl=_LOCK_TTL) as idem:

            async def handler() -> str:
                stage.effect(f"start {delivery}")
                pipe.send("started")
                await asyncio.to_thread(pipe.recv)
                stage.effect(f"finish {delivery}")
                return f"by {os.getpid()}"

            try:
                key = keys.GitHub(delivery_id=delivery)
                out = await idem.process(key, "acme", BODY, handler, wait=_PATIENCE)
                pipe.send("done" if out.processed else "replayed")
            except towline.Stale:
                pipe.send("stale")

    asyncio.run(work())


def queuer(folder: str, turns: int, pipe: Connection) -> None:
    """Takes one lock again and again, and notes the token it got each time."""
    stage = Stage(folder)

    async def work() -> None:
        async with towline.Locks.open(stage.url) as locks:
            for _ in range(turns):
                async with locks.acquire("repo", wait_seconds=_PATIENCE) as lease:
                    stage.effect(f"lock {lease.token}")
            pipe.send("done")

    asyncio.run(work())


# ---------------------------------------------------------------------- the acts


@contextmanager
def children(
    target: Callable[..., None], *arguments: tuple[Any, ...]
) -> Iterator[list[tuple[Any, Connection]]]:
    """Processes with a pipe each; all of them are gone afterwards."""
    started: list[tuple[Any, Connection]] = []
    try:
        for given in arguments:
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=target, args=(*given, theirs), daemon=True)
            process.start()
            started.append((process, ours))
        yield started
    finally:
        for process, pipe in started:
            if process.is_alive():
                process.kill()
            process.join()
            pipe.close()


def heard(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE):
        raise towline.Transient("a process of the demo did not answer in time")
    return pipe.recv()


def act_crowd(folder: str) -> Act:
    with children(crowd, *[(folder, 16)] * 4) as crowds:
        answers = [heard(pipe) for _, pipe in crowds]
    ran = Stage(folder).count("crowd")
    served = sum(same for _, same in answers)
    return Act(
        "64 callers in 4 processes, one delivery",
        f"the handler ran {ran} time, {served} callers have its result",
        ran == 1 and served == 64 and sum(done for done, _ in answers) == 1,
    )


def act_death(folder: str) -> Act:
    """SIGKILL in mid-handler: one other takes over."""
    with children(worker, (folder, "killed")) as [(victim, first)]:
        heard(first)
        with children(worker, *[(folder, "killed")] * 2) as heirs:
            victim.kill()
            fates = _finish_one_then_hear_all([pipe for _, pipe in heirs])
    stage = Stage(folder)
    starts, ends = stage.count("start killed"), stage.count("finish killed")
    return Act(
        "the holder is killed in mid-work",
        f"started {starts} times, finished {ends} time; heirs: {', '.join(sorted(fates))}",
        (starts, ends, sorted(fates)) == (2, 1, ["done", "replayed"]),
    )


def _finish_one_then_hear_all(pipes: list[Connection]) -> list[str]:
    fates: list[str] = []
    waiting = list(pipes)
    while waiting:
        ready = multiprocessing.connection.wait(waiting, _PATIENCE)
        pipe = next((pipe for pipe in waiting if pipe in ready), waiting[0])
        word = heard(pipe)
        if word == "started":
            pipe.send("go on")
        else:
            fates.append(word)
            waiting.remove(pipe)
    return fates


def act_freeze(folder: str) -> Act:
    """SIGSTOP past the lock: the sleeper wakes up to find itself superseded."""
    with children(worker, (folder, "frozen")) as [(sleeper, first)]:
        heard(first)
        os.kill(sleeper.pid, signal.SIGSTOP)
        with children(worker, (folder, "frozen")) as [(_, second)]:
            heard(second)
            second.send("go on")
            heir = heard(second)
        os.kill(sleeper.pid, signal.SIGCONT)
        first.send("go on")
        late = heard(first)
    return Act(
        "the holder freezes past its lock, then wakes up",
        f"its heir: {heir}; the late finisher is told: {late}",
        (heir, late) == ("done", "stale"),
    )


def act_collision(folder: str) -> Act:
    async def work() -> str:
        async with towline.Idempotency.open(Stage(folder).url) as idem:
            other = {**BODY, "check_run": {"conclusion": "success", "name": "build"}}
            claim = await idem.check_and_set(DELIVERY, "acme", other)
            return f"{claim.status} at {', '.join(claim.pointers)}"

    outcome = asyncio.run(work())
    return Act(
        "the same key with another payload",
        outcome,
        outcome == "collision at /check_run/conclusion",
    )


def act_queue(folder: str) -> Act:
    with children(queuer, *[(folder, 25)] * 4) as queuers:
        for _, pipe in queuers:
            heard(pipe)
    lines = Stage(folder).effects.read_text(encoding="utf-8").splitlines()
    tokens = [int(line.split()[1]) for line in lines if line.startswith("lock ")]
    ordered = tokens == sorted(set(tokens))
    return Act(
        "4 processes, one lock, 25 turns each",
        f"{len(tokens)} turns, one at a time; fencing tokens {'only grew' if ordered else 'mixed'}",
        len(tokens) == 100 and ordered,
    )


ACTS = (act_crowd, act_death, act_freeze, act_collision, act_queue)


def run(as_json: bool) -> None:
    console = Console(stderr=as_json)
    acts: list[Act] = []
    with tempfile.TemporaryDirectory(prefix="towline-demo-") as folder:
        Stage(folder).effect("curtain")
        with console.status("real processes on one SQLite file …") as status:
            for number, act in enumerate(ACTS, 1):
                status.update(f"act {number} of {len(ACTS)}: {act.__name__[4:]} …")
                acts.append(act(folder))
    if as_json:
        typer.echo(orjson.dumps([act._asdict() for act in acts]).decode())
    else:
        console.print(_table(acts))
    if not all(act.holds for act in acts):
        raise towline.TowlineError("the demo saw something it should not have seen: see above")


def _table(acts: list[Act]) -> Table:
    table = Table(title="Towline: every event to at most one effect", title_style="bold")
    table.add_column("")
    table.add_column("what happens")
    table.add_column("what came of it")
    for act in acts:
        table.add_row("[green]✓[/]" if act.holds else "[red]✗[/]", act.title, act.outcome)
    return table
