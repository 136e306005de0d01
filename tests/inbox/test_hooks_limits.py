"""What the front door does with too much, too slow, too many, and those who leave half-way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import pytest

from tests.app.control_plane import is_problem
from tests.http.front_door import (
    FrontDoor,
    Knock,
    RawReply,
    Wire,
    front_door,
    github,
    head_of,
    ping,
    push,
    until,
)

EXPECTS = "expect: 100-continue"
SOON = 0.3
"""The patience of the server in tests that use it up."""


def of_size(size: int) -> Knock:
    """A good delivery whose body has this many bytes."""
    return github("ping", b'{"zen": "' + b"x" * (size - 11) + b'"}')


def chunked(knock: Knock, pieces: int) -> bytes:
    """The request with its body in chunks and without a length."""
    head = head_of(knock).replace(b"content-length", b"x-length")
    size = -(-len(knock.body) // pieces)
    parts = [knock.body[at : at + size] for at in range(0, len(knock.body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + framed


def is_raw_problem(reply: RawReply, status: int, code: str) -> bool:
    kind = reply.headers["content-type"]
    return (reply.status, reply.json["code"], kind) == (status, code, "application/problem+json")


@contextlib.asynccontextmanager
async def half_way(door: FrontDoor, knock: Knock, sent: int = 0) -> AsyncIterator[Wire]:
    """A request that was let in, of whose body only so many bytes were sent."""
    async with door.wire() as wire:
        await wire.send(head_of(knock, EXPECTS))
        assert (await wire.reply()).status == 100
        await wire.send(knock.body[:sent])
        yield wire


async def test_too_large_by_its_length(sqlite_url: str) -> None:
    """413 before any of it is read; one byte less is let in, and the connection goes on."""
    async with front_door(sqlite_url, ingest={"max_body_bytes": 1000}) as door:
        assert is_problem(await door.post(of_size(1001)), 413, "too_large")
        assert await door.inbox() == []
        assert (await door.post(of_size(1000))).status_code == 202
        async with door.wire() as wire:
            await wire.send(head_of(ping(), EXPECTS, length=10**15))
            assert is_raw_problem(await wire.reply(), 413, "too_large")


async def test_too_large_without_a_length(sqlite_url: str) -> None:
    """A stream is cut off where it passes the limit, though its end is not in sight."""
    async with front_door(sqlite_url, ingest={"max_body_bytes": 1000}) as door:
        async with door.wire() as wire:
            await wire.send(chunked(of_size(1001), 7))
            assert is_raw_problem(await wire.reply(), 413, "too_large")
        async with door.wire() as wire:
            await wire.send(chunked(of_size(1000), 7) + b"0\r\n\r\n")
            assert (await wire.reply()).status == 202
        assert len(await door.inbox()) == 1


async def test_as_large_as_github_sends(sqlite_url: str) -> None:
    """25 MB, GitHub's limit and our default, come in whole, once."""
    async with front_door(sqlite_url) as door:
        knock = of_size(25 * 1024 * 1024)
        assert [(await door.post(knock)).status_code for _ in range(2)] == [202, 200]
        assert (await door.post(of_size(25 * 1024 * 1024 + 1))).status_code == 413


@pytest.mark.parametrize("sent", [0, 10], ids=["no byte of it", "a part of it"])
async def test_a_slow_body_is_not_waited_for(sqlite_url: str, sent: int) -> None:
    """408 when its time is up, and the connection ends: its rest would pass for a request."""
    async with front_door(sqlite_url, ingest={"body_timeout_seconds": SOON}) as door:
        knock = ping()
        async with door.wire() as wire:
            began = time.monotonic()
            await wire.send(head_of(knock) + knock.body[:sent])
            reply = await wire.reply()
            assert is_raw_problem(reply, 408, "too_slow")
            assert reply.headers["connection"] == "close"
            assert SOON * 0.9 < time.monotonic() - began < SOON + 5
            assert await wire.hung_up()
        assert await door.inbox() == []
        assert (await door.post(knock)).status_code == 202


async def test_a_dribble_is_not_waited_for_either(sqlite_url: str) -> None:
    """The time is that of the whole body, however diligently single bytes arrive."""
    async with front_door(sqlite_url, ingest={"body_timeout_seconds": SOON}) as door:
        knock = of_size(1_000_000)
        async with door.wire() as wire:
            await wire.send(head_of(knock))
            answer = asyncio.create_task(wire.reply())
            for byte in knock.body:
                if answer.done():
                    break
                await wire.send(bytes([byte]))
                await asyncio.sleep(0)
            assert is_raw_problem(await answer, 408, "too_slow")


async def test_a_connection_that_lies_idle_is_closed(sqlite_url: str) -> None:
    """The time counts from the last answer, however long ago the first one was."""
    idle = 1.0
    async with front_door(sqlite_url, idle_seconds=idle) as door, door.wire() as wire:
        for _ in range(5):
            await asyncio.sleep(idle * 0.3)
            knock = ping()
            await wire.send(head_of(knock) + knock.body)
            assert (await wire.reply()).status == 202
        began = time.monotonic()
        assert await wire.hung_up()
        assert time.monotonic() - began > idle * 0.9


async def test_too_many_at_once(sqlite_url: str) -> None:
    """Who finds the room full is asked to come back; who is in is served, then all are."""
    first, second, third = ping(), ping(), ping()
    async with front_door(sqlite_url, ingest={"max_concurrency": 2}) as door:
        async with half_way(door, first) as one, half_way(door, second, 5) as two:
            refused = await door.post(third)
            assert is_problem(refused, 503, "busy")
            assert int(refused.headers["retry-after"]) >= 1
            await one.send(first.body)
            await two.send(second.body[5:])
            assert [(await one.reply()).status, (await two.reply()).status] == [202, 202]
        assert (await door.post(third)).status_code == 202
        assert len(await door.inbox()) == 3


async def test_too_many_bytes_at_once(sqlite_url: str) -> None:
    """Heads and bodies are counted while they arrive, and no longer when they are stored."""
    limits = {"max_inflight_bytes": 2000, "max_body_bytes": 1950}
    large, small = of_size(1500), of_size(600)
    async with front_door(sqlite_url, ingest=limits) as door:
        unsigned = small._replace(headers={})

        async def full() -> bool:
            answer = await door.post(unsigned)
            assert answer.status_code in (401, 503)
            return answer.status_code == 503

        async with half_way(door, large, 1490) as wire:
            await until(full, "what has arrived of the large one is counted")
            refused = await door.post(small)
            assert is_problem(refused, 503, "busy")
            assert int(refused.headers["retry-after"]) >= 1
            await wire.send(large.body[1490:])
            assert (await wire.reply()).status == 202
        for _ in range(10):
            assert (await door.post(of_size(1500))).status_code == 202


@pytest.mark.parametrize("sent", [0, 10])
async def test_who_hangs_up_leaves_nothing_behind(
    sqlite_url: str, sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No delivery, no place taken, no bytes counted, and not a word in the log."""
    caplog.set_level(logging.INFO, "uvicorn.error")
    narrow = {"max_concurrency": 1, "max_inflight_bytes": 1000, "max_body_bytes": 100}
    async with front_door(sqlite_url, ingest=narrow) as door:
        for _ in range(20):
            async with half_way(door, of_size(95), sent):
                pass
            await until(lambda: comes_in(door), "the place of who left is free")
        assert {stored.event_name for stored in await door.inbox()} == {"ping"}
        assert len(await door.inbox()) == 20
    said = [one for one in caplog.records if one.levelno > logging.INFO or one.exc_info]
    assert said == []


async def comes_in(door: FrontDoor) -> bool:
    answer = await door.post(of_size(80))
    assert answer.status_code in (202, 503)
    return answer.status_code == 202


async def test_who_hangs_up_after_the_end_was_heard(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A whole delivery counts though nobody waits for its answer; the retry is ignored."""
    caplog.set_level(logging.INFO, "uvicorn.error")
    async with front_door(sqlite_url) as door:
        knock = push()
        async with door.wire() as wire:
            await wire.send(head_of(knock) + knock.body)

        async def stored() -> bool:
            return len(await door.inbox()) == 1

        await until(stored, "the delivery is stored")
        assert (await door.post(knock)).json()["status"] == "duplicate_ignored"
    assert [one for one in caplog.records if one.levelno > logging.INFO or one.exc_info] == []


async def test_pipelined_deliveries_are_answered_in_order(sqlite_url: str) -> None:
    """Sent in one go, without waiting for answers: each has its own, first come, first served."""
    knocks = [push(), ping(), push(), ping()]
    async with front_door(sqlite_url) as door:
        async with door.wire() as wire:
            await wire.send(b"".join(head_of(knock) + knock.body for knock in knocks))
            replies = [await wire.reply() for _ in knocks]
        assert [reply.status for reply in replies] == [202] * 4
        told = [reply.json["delivery_id"] for reply in replies]
        assert told == [knock.headers["x-github-delivery"] for knock in knocks]
