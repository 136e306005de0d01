"""What a child process does: `python -m tests.processes.child ROLE SETTINGS`.

It prints lines of JSON, each with an `event`, and takes its cues as lines on stdin.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import towline
from tests.processes.fence import Fence
from towline import keys
from towline_once.backends import backend_for
from towline_once.clock import SystemClock


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def append(path: str, line: str) -> None:
    """One write to the end of the file: lines of several processes do not mix."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


class Cues:
    """Lines on stdin, awaited without holding up the loop."""

    def __init__(self) -> None:
        self._reader = asyncio.StreamReader()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), sys.stdin)

    async def next(self) -> str:
        return (await self._reader.readline()).decode().strip()


async def callers(settings: dict[str, Any], cues: Cues) -> None:
    """Many tasks process one key; whichever runs the handler finishes it on cue."""
    key = keys.Api(client_id="crew", request_id=settings["request"])
    async with towline.Idempotency.open(settings["url"], lock_ttl=settings["lock_ttl"]) as idem:

        async def handler() -> dict[str, int]:
            record = await idem.get(key, "acme")
            assert record is not None
            append(settings["effects"], f"start {record.token}")
            say("running", token=record.token)
            await finish.wait()
            append(settings["effects"], f"finish {record.token}")
            return {"by": os.getpid()}

        async def call() -> towline.Outcome:
            return await idem.process(key, "acme", {"n": 1}, handler, wait=settings["wait"])

        finish = asyncio.Event()
        say("ready")
        await cues.next()
        calls = [asyncio.ensure_future(call()) for _ in range(settings["tasks"])]
        say("launched")
        cue = asyncio.ensure_future(cues.next())
        cue.add_done_callback(lambda _: finish.set())
        outs = await asyncio.gather(*calls)
        cue.cancel()
        say(
            "done",
            processed=[out.processed for out in outs],
            results=sorted({out.result["by"] for out in outs}),
        )


async def worker(settings: dict[str, Any], cues: Cues) -> None:
    """One call whose handler waits for its cue, with the loop free or (`blocking`) held up."""
    key = keys.Api(client_id="crew", request_id="shared")
    async with towline.Idempotency.open(settings["url"], lock_ttl=settings["lock_ttl"]) as idem:

        async def handler() -> str:
            record = await idem.get(key, "acme")
            assert record is not None
            say("running", token=record.token, attempts=record.attempts)
            if settings["blocking"]:
                sys.stdin.readline()
            else:
                await cues.next()
            return str(settings["result"])

        try:
            out = await idem.process(key, "acme", {}, handler, wait=settings.get("wait"))
        except towline.TowlineError as error:
            say("refused", error=type(error).__name__)
        else:
            say("done", result=out.result, processed=out.processed)


async def lock_holder(settings: dict[str, Any], cues: Cues) -> None:
    """Hold a lock until the cue, then write to the fenced file, whatever became of the lease."""
    fence, token = Fence(settings["fence"]), 0
    async with towline.Locks.open(settings["url"]) as locks:
        try:
            async with locks.acquire("repo", settings["ttl"], wait_seconds=40) as lease:
                token = lease.token
                say("holding", token=token, accepted=fence.write(token, settings["name"]))
                try:
                    await cues.next()
                finally:
                    say("leaving", lost=lease.lost.is_set())
        except towline.LeaseLost:
            say("lease lost", accepted=fence.write(token, settings["name"]))
        else:
            say("released")


async def lock_visitor(settings: dict[str, Any], cues: Cues) -> None:
    """Enter one lock so many times; nobody else may be inside meanwhile."""
    async with towline.Locks.open(settings["url"]) as locks:
        say("ready")
        await cues.next()
        for _ in range(settings["times"]):
            async with locks.acquire("repo", ttl_seconds=60, wait_seconds=60) as lease:
                os.close(os.open(settings["inside"], os.O_CREAT | os.O_EXCL))
                append(settings["visits"], f"{lease.token} {settings['name']}")
                os.unlink(settings["inside"])
        say("done")


async def hammer(settings: dict[str, Any], cues: Cues) -> None:
    """Claim and complete, as fast as it goes, for so many seconds."""
    cycles, longest = 0, 0.0

    async def work(task: int) -> None:
        nonlocal cycles, longest
        serial = 0
        while (started := time.monotonic()) < end:
            serial += 1
            key = keys.Api(client_id=f"{os.getpid()}-{task}", request_id=str(serial))
            claim = await idem.check_and_set(key, "acme", serial)
            claimed = time.monotonic()
            assert await idem.complete(claim, serial)
            cycles += 1
            longest = max(longest, claimed - started, time.monotonic() - claimed)

    async with towline.Idempotency.open(settings["url"]) as idem:
        say("ready")
        await cues.next()
        end = time.monotonic() + settings["seconds"]
        await asyncio.gather(*[work(task) for task in range(settings["tasks"])])
    say("done", cycles=cycles, longest=longest)


async def finisher(settings: dict[str, Any], cues: Cues) -> None:
    """Complete numbered keys one after the other, and tell of each one when it is durable."""
    async with towline.Idempotency.open(settings["url"], lock_ttl=settings["lock_ttl"]) as idem:
        say("ready")
        for number in range(settings["first"], settings["last"]):
            key = keys.Api(client_id="crew", request_id=str(number))
            claim = await idem.check_and_set(key, "acme", number)
            if claim.status == "new" and await idem.complete(claim, number):
                say("completed", number=number, token=claim.token)
    say("done")


async def opener(settings: dict[str, Any], cues: Cues) -> None:
    """Open a store that may have no tables yet, at once when told to: all is loaded before."""
    importlib.import_module("asyncpg")
    backend = backend_for(settings["url"], SystemClock())
    say("ready")
    await cues.next()
    try:
        await backend.connect()
        size = await backend.records.size()
    except towline.TowlineError as error:
        say("refused", error=type(error).__name__, text=str(error))
    else:
        say("open", size=size)
    finally:
        await backend.aclose()


ROLES: dict[str, Callable[[dict[str, Any], Cues], Awaitable[None]]] = {
    role.__name__: role
    for role in (callers, worker, lock_holder, lock_visitor, hammer, finisher, opener)
}


async def main(role: str, settings: dict[str, Any]) -> None:
    cues = Cues()
    if not settings.get("blocking"):
        await cues.open()
    await ROLES[role](settings, cues)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
