"""The submit API for clients: one job per key, and the same answer however often they ask."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.submit.submitting import DAY, HOUR, Mesh
from towline import payload_hash
from towline.db import database_for
from towline.jobs.model import NewJob
from towline.submit.store import Proposal
from towline_once.db.statement import Database


@pytest.fixture
def mesh(database: Database, clock: ManualClock) -> Mesh:
    return Mesh(database, clock)


def gauge(name: str) -> float:
    return REGISTRY.get_sample_value(f"towline_{name}") or 0.0


async def test_ten_submits_of_one_key(mesh: Mesh) -> None:
    """One job is queued; nine are told that it is in progress."""
    receipts = await asyncio.gather(*[mesh.submit() for _ in range(10)])
    assert sorted(receipt.dedup for receipt in receipts) == [False] + [True] * 9
    assert sorted(receipt.status for receipt in receipts) == ["accepted"] + ["in_progress"] * 9
    assert len({(receipt.request_id, receipt.job_id) for receipt in receipts}) == 1
    assert await mesh.queued() == 1
    hits = [event for event in mesh.audit.events if event["event"] == "IDEMPOTENCY_HIT"]
    assert len(hits) == 9
    assert hits[0]["key_prefix"] == "key-0000"
    assert (hits[0]["status"], hits[0]["job_id"]) == ("in_progress", receipts[0].job_id)


async def test_other_payload(mesh: Mesh) -> None:
    """A key that stands for another payload is a collision: audited, and nothing is queued."""
    first = await mesh.submit(n=1)
    other = await mesh.submit(n=2)
    assert (other.status, other.dedup, other.request_id) == ("collision", False, first.request_id)
    assert await mesh.queued() == 1
    old, new = (payload_hash({"kind": "build", "params": {"n": n}})[:8] for n in (1, 2))
    [event] = mesh.audit.events
    assert event["event"] == "IDEMPOTENCY_KEY_COLLISION"
    assert (event["key_prefix"], event["request_id"]) == ("key-0000", first.request_id)
    assert (event["old_hash_prefix"], event["new_hash_prefix"]) == (old, new)
    assert "key-0000-1" not in str(event)


async def test_completed_is_answered_from_the_record(mesh: Mesh) -> None:
    """Who asks again after the end gets the result with its digest, and no new job."""
    first = await mesh.submit()
    await mesh.finish({"url": "https://ci.example/7"})
    again = await mesh.submit()
    assert (again.status, again.dedup, again.job_id) == ("completed", True, first.job_id)
    assert again.result is not None
    assert json.loads(again.result) == {"url": "https://ci.example/7"}
    assert again.sha256 == payload_hash({"url": "https://ci.example/7"})
    assert await mesh.queued() == 0


async def test_failed_is_answered_from_the_record(mesh: Mesh) -> None:
    """A job that was given up is told as failed with its error, and not begun again."""
    await mesh.submit()
    await mesh.fail(await mesh.claim(), "no such branch", definitive=True)
    again = await mesh.submit()
    assert (again.status, again.dedup, again.error) == ("failed", True, "no such branch")
    assert await mesh.queued() == 0


@pytest.mark.parametrize("mid", [None, "running", "retrying"])
async def test_unfinished_is_in_progress(mesh: Mesh, mid: str | None) -> None:
    """Waiting, running or waiting for its next attempt: a duplicate starts nothing."""
    first = await mesh.submit()
    if mid is not None:
        job = await mesh.claim()
        if mid == "retrying":
            await mesh.fail(job)
    again = await mesh.submit()
    assert (again.status, again.dedup, again.job_id) == ("in_progress", True, first.job_id)


async def test_without_a_key_nothing_is_a_duplicate(mesh: Mesh) -> None:
    """Each submit is a request of its own, with an id to ask for."""
    one, two = await asyncio.gather(mesh.submit(None), mesh.submit(None))
    assert {one.status, two.status} == {"accepted"}
    assert not one.dedup
    assert one.request_id != two.request_id
    assert await mesh.queued() == 2
    found = await mesh.service.status("ci", two.request_id)
    assert found is not None
    assert found[1].job_id == two.job_id


async def test_clients_do_not_share_keys(mesh: Mesh) -> None:
    """The same key text of another client is another key, and its requests are not shown."""
    mine, theirs = await mesh.submit(n=1), await mesh.submit(n=2, client="nightly")
    assert theirs.status == "accepted"
    assert await mesh.service.status("ci", theirs.request_id) is None
    assert await mesh.service.status("ci", mine.request_id) is not None


async def test_dedup_can_be_turned_off(database: Database, clock: ManualClock) -> None:
    """Then a key means nothing."""
    mesh = Mesh(database, clock, dedup=False)
    assert [(await mesh.submit(n=n)).status for n in (1, 1, 2)] == ["accepted"] * 3
    assert await mesh.queued() == 3


@pytest.mark.parametrize(("definitive", "ttl"), [(None, DAY), (True, HOUR)])
async def test_a_finished_record_expires(
    mesh: Mesh, clock: ManualClock, definitive: bool | None, ttl: int
) -> None:
    """After its time a key is free, also for another payload; before, it is not."""
    first = await mesh.submit()
    job = await mesh.claim()
    if definitive:
        await mesh.fail(job, definitive=True)
    else:
        await mesh.complete(job)
    clock.advance(ttl - 30)
    assert (await mesh.submit()).dedup
    clock.advance(60)
    second = await mesh.submit(n=2)
    assert (second.status, second.dedup) == ("accepted", False)
    assert second.job_id != first.job_id
    assert await mesh.queued() == 1
    assert (await mesh.submit(n=2)).job_id == second.job_id


async def test_an_unfinished_record_never_expires(mesh: Mesh, clock: ManualClock) -> None:
    """However long a job waits, its key is known."""
    await mesh.submit()
    clock.advance(10 * DAY)
    assert (await mesh.submit()).status == "in_progress"
    assert (await mesh.service.cleanup()).rows == 0


async def test_cleanup_deletes_what_has_expired(mesh: Mesh, clock: ManualClock) -> None:
    """Finished requests go after their time, with a key or without; the others stay."""
    for key in ("a", None):
        await mesh.submit(key)
        await mesh.finish()
    waiting = await mesh.submit("b")
    assert (await mesh.service.cleanup()).rows == 0
    clock.advance(DAY + 1)
    assert (await mesh.service.cleanup()).rows == 2
    assert await mesh.requests.size() == gauge("idempotency_store_size") == 1
    assert (await mesh.submit("b")).job_id == waiting.job_id


async def test_ten_processes_one_key(sql_url: str, clock: ManualClock) -> None:
    """Ten handles with connections of their own submit one key at once: one job, no error."""
    async with AsyncExitStack() as stack:
        crew = await opened(stack, sql_url, clock)
        receipts = await asyncio.gather(*[mesh.submit() for mesh in crew])
        assert sorted(receipt.status for receipt in receipts) == ["accepted"] + ["in_progress"] * 9
        assert len({receipt.job_id for receipt in receipts}) == 1
        assert await crew[0].queued() == 1


async def test_ten_processes_many_keys(sql_url: str, clock: ManualClock) -> None:
    """Keys that meet in shared transactions, in any order, give one job each and no error."""
    order = random.Random(7)
    async with AsyncExitStack() as stack:
        crew = await opened(stack, sql_url, clock)
        calls = [(mesh, f"key-{n}") for mesh in crew for n in range(40)]
        order.shuffle(calls)
        receipts = await asyncio.gather(*[mesh.submit(key) for mesh, key in calls])
        assert sum(receipt.status == "accepted" for receipt in receipts) == 40
        assert sum(receipt.dedup for receipt in receipts) == 360
        assert await crew[0].queued() == 40


async def test_ten_processes_and_expired_keys(sql_url: str, clock: ManualClock) -> None:
    """An expired record is replaced by one of them; the others are told of the new one."""
    async with AsyncExitStack() as stack:
        crew = await opened(stack, sql_url, clock)
        keys = [f"key-{n}" for n in range(20)]
        old = {(await crew[0].submit(key)).job_id for key in keys}
        for _ in keys:
            await crew[0].finish()
        clock.advance(DAY + 1)
        await asyncio.gather(*[mesh.submit("warm") for mesh in crew])
        for key in keys:
            receipts = await asyncio.gather(*[mesh.submit(key) for mesh in crew])
            statuses = sorted(receipt.status for receipt in receipts)
            assert statuses == ["accepted"] + ["in_progress"] * 9
            [job_id] = {receipt.job_id for receipt in receipts}
            assert job_id not in old
        assert await crew[0].queued() == len(keys) + 1


async def opened(stack: AsyncExitStack, url: str, clock: ManualClock) -> list[Mesh]:
    crew = []
    for _ in range(10):
        database = database_for(url, clock, timeout=30)
        await database.connect()
        stack.push_async_callback(database.aclose)
        crew.append(Mesh(database, clock))
    return crew


@pytest.mark.parametrize("key", ["k", None])
async def test_a_commit_whose_answer_was_lost(mesh: Mesh, key: str | None) -> None:
    """The store is asked again with the same ids: it is the same success, and one job."""
    job = NewJob("job_1", "mesh:build", "build", "{}")
    proposal = Proposal("ci", key, "request-1", "hash", job, admitted=True)
    told = [await mesh.requests.submit(proposal) for _ in range(2)]
    assert told[0] == told[1]
    assert (told[0].outcome, told[0].dedup) == ("accepted", False)
    assert await mesh.queued() == 1


async def test_a_hit_is_seen(mesh: Mesh, clock: ManualClock) -> None:
    """A duplicate is noted on the record; its age stays."""
    receipt = await mesh.submit()
    clock.advance(100)
    await mesh.submit()
    record = await mesh.requests.read("ci", receipt.request_id)
    assert record is not None
    assert 100e6 <= record.last_seen_us - record.created_us < 160e6


async def test_large_results_leave_a_tombstone(database: Database, clock: ManualClock) -> None:
    """A duplicate is told the size in bytes; the request itself still has the whole result."""
    mesh = Mesh(database, clock, max_cached_bytes=20)
    results: list[Any] = ["ü" * 9, "ü" * 9 + "!"]
    for key, result in zip("ab", results, strict=True):
        await mesh.submit(key)
        await mesh.finish(result)
    small, large = await mesh.submit("a"), await mesh.submit("b")
    assert json.loads(small.result or "") == results[0]
    assert json.loads(large.result or "") == {"result_omitted": True, "bytes": 21}
    found = await mesh.service.status("ci", large.request_id)
    assert found is not None
    assert json.loads(found[1].result or "") == results[1]


async def test_the_last_minute(mesh: Mesh, clock: ManualClock) -> None:
    """The gauges of the specification rise with each duplicate and forget it after a minute."""
    await mesh.submit()
    await mesh.submit()
    await mesh.submit(n=2)
    clock.advance(30)
    await mesh.finish()
    await mesh.submit()
    shown = ["hits", "in_progress", "completed", "collisions"]
    assert [gauge(f"idempotent_{name}_1m") for name in shown] == [2, 1, 1, 1]
    clock.advance(35)
    assert [gauge(f"idempotent_{name}_1m") for name in shown] == [1, 0, 1, 0]
    clock.advance(35)
    assert [gauge(f"idempotent_{name}_1m") for name in shown] == [0, 0, 0, 0]


async def test_totals(mesh: Mesh) -> None:
    """Each submit is counted by what became of it."""

    def total(status: str) -> float:
        return REGISTRY.get_sample_value("towline_submit_total", {"status": status}) or 0.0

    statuses = ["accepted", "in_progress", "collision"]
    before = [total(status) for status in statuses]
    for n in (1, 1, 2):
        await mesh.submit(n=n)
    assert [total(status) for status in statuses] == [count + 1 for count in before]
