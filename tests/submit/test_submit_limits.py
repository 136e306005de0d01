"""Backpressure: a full queue refuses, too much in flight defers, a full store makes room."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.submit.submitting import DAY, HOUR, KEEP, Mesh
from towline.jobs.model import NewJob
from towline.jobs.store import JobStore
from towline.submit.rules import Load, Submission, read_submission
from towline.submit.service import Submit, SubmitPolicy
from towline.submit.store import RequestStore
from towline_once.db.statement import Database
from towline_once.errors import Unavailable
from towline_once.metrics import audit_to_log


class Watched(RequestStore):
    """Says how often it counted, and can be away."""

    loads = sizes = 0
    away = False

    async def load(self, most_queued: int, most_running: int) -> Load:
        self.loads += 1
        if self.away:
            raise Unavailable("away")
        return await super().load(most_queued, most_running)

    async def size(self) -> int:
        self.sizes += 1
        return await super().size()


def numbered(n: int) -> Submission:
    return read_submission({"kind": "build", "idempotency_key": f"k{n}"})


async def test_a_full_queue_refuses(database: Database, clock: ManualClock) -> None:
    """Over all kinds together; a known key is still answered, and a collision still seen."""
    mesh = Mesh(database, clock, max_queued=3)
    for n in range(3):
        assert (await mesh.submit(f"k{n}", kind=f"kind{n}")).status == "accepted"
    refused = [await mesh.submit("k3"), await mesh.submit(None)]
    assert [(receipt.status, receipt.retry_after) for receipt in refused] == [("queue_full", 1)] * 2
    assert (await mesh.submit("k0", kind="kind0")).status == "in_progress"
    assert (await mesh.submit("k0", n=2, kind="kind0")).status == "collision"
    assert await mesh.queued() == 3


async def test_many_at_once_keep_to_the_limit(database: Database, clock: ManualClock) -> None:
    """Submits that are under way count, so a burst does not run over."""
    mesh = Mesh(database, clock, max_queued=3)
    receipts = await asyncio.gather(*[mesh.submit(f"k{n}") for n in range(10)])
    assert sorted(receipt.status for receipt in receipts) == ["accepted"] * 3 + ["queue_full"] * 7
    assert await mesh.queued() == 3


async def test_a_claim_makes_room_at_once(database: Database, clock: ManualClock) -> None:
    """What this process does itself is known to it without another count."""
    mesh = Mesh(database, clock, max_queued=1)
    await mesh.submit("a")
    assert (await mesh.submit("b")).status == "queue_full"
    await mesh.claim()
    assert (await mesh.submit("b")).status == "accepted"


async def test_what_others_do_is_seen_after_a_second(
    database: Database, clock: ManualClock
) -> None:
    """Between two counts another process may fill the queue; then the limit holds again."""
    here, there = Mesh(database, clock, max_queued=2), Mesh(database, clock, max_queued=2)
    await here.submit("a")
    await there.submit("b")
    assert (await here.submit("c")).status == "accepted"
    clock.advance(1.1)
    assert (await here.submit("d")).status == "queue_full"
    clock.advance(1.1)
    await there.finish()
    await there.finish()
    clock.advance(1.1)
    assert (await here.submit("d")).status == "accepted"


async def test_nothing_is_taken_off_a_count_that_was_cut_short(
    database: Database, clock: ManualClock
) -> None:
    """One beyond the limit is counted, and there may be more: claims make no room before a look."""
    here, there = Mesh(database, clock, max_queued=2), Mesh(database, clock, max_queued=9)
    for n in range(5):
        assert (await there.submit(f"k{n}")).status == "accepted"
    assert (await here.submit("a")).status == "queue_full"
    await here.claim()
    await here.claim()
    assert await here.queued() == 3
    assert (await here.submit("a")).status == "queue_full"
    await here.claim()
    await here.claim()
    clock.advance(1.1)
    assert (await here.submit("a")).status == "accepted"


async def test_other_queues_do_not_count(database: Database, clock: ManualClock) -> None:
    """Towline's own jobs have limits of their own."""
    mesh = Mesh(database, clock, max_queued=1)
    for queue in ("towline", "mesh", "mesh~", "mesi:x"):
        await mesh.jobs.enqueue(NewJob(f"job_{queue}", queue, "delivery"))
    assert (await mesh.submit()).status == "accepted"


async def test_the_queue_is_not_counted_each_time(database: Database, clock: ManualClock) -> None:
    """A hundred submits within a second cost one count of the queue and one of the store."""
    requests = Watched(database, KEEP, 16_384)
    service = Submit(requests, JobStore(database), clock, SubmitPolicy(), audit_to_log)
    await asyncio.gather(*[service.submit("ci", numbered(n)) for n in range(100)])
    assert (requests.loads, requests.sizes) == (1, 1)
    clock.advance(1.1)
    await asyncio.gather(*[service.submit("ci", numbered(n)) for n in range(100, 200)])
    assert (requests.loads, requests.sizes) == (2, 1)


async def test_too_much_in_flight_defers(database: Database, clock: ManualClock) -> None:
    """A submit is accepted and marked; workers get nothing until a job in flight has ended."""
    mesh = Mesh(database, clock, max_inflight=2)
    assert not (await mesh.submit("a")).deferred
    await mesh.submit("b")
    jobs = [await mesh.claim(), await mesh.claim()]
    receipt = await mesh.submit("c")
    assert (receipt.status, receipt.deferred) == ("accepted", True)
    assert not (await mesh.submit("c")).deferred
    assert await mesh.offer() == (None, 1.0)
    await mesh.complete(jobs[0])
    assert (await mesh.claim()).id == receipt.job_id


async def test_many_claims_at_once_keep_to_the_limit(
    database: Database, clock: ManualClock
) -> None:
    """Claims that are under way count."""
    mesh = Mesh(database, clock, max_inflight=2)
    for n in range(5):
        await mesh.submit(f"k{n}")
    offers = await asyncio.gather(*[mesh.offer() for _ in range(5)])
    assert sum(offer.job is not None for offer in offers) == 2
    assert sum(offer.retry_after > 0 for offer in offers) == 3


async def test_a_retry_is_no_longer_in_flight(database: Database, clock: ManualClock) -> None:
    """A failed attempt gives its place to another job."""
    mesh = Mesh(database, clock, max_inflight=1)
    await mesh.submit("a")
    await mesh.submit("b")
    first = await mesh.claim()
    await mesh.fail(first)
    assert (await mesh.claim()).id != first.id


async def test_the_store_makes_room(database: Database, clock: ManualClock) -> None:
    """At its maximum the oldest finished request goes, never one that has not ended."""
    mesh = Mesh(database, clock, max_items=3)
    keys = ("waiting", "done 1", "done 2")
    receipts = [await mesh.submit(key, kind=key.split()[0]) for key in keys]
    for _ in range(2):
        await mesh.complete(await mesh.claim("done"))
    await mesh.submit("new")
    assert await mesh.requests.size() == 3
    known = [await mesh.service.status("ci", receipt.request_id) for receipt in receipts]
    assert [found is not None for found in known] == [True, False, True]


async def test_expired_requests_go_first(database: Database, clock: ManualClock) -> None:
    """An older request that still counts stays while a younger one has expired."""
    mesh = Mesh(database, clock, max_items=2)
    older, younger = await mesh.submit("older"), await mesh.submit("younger")
    await mesh.finish()
    await mesh.fail(await mesh.claim(), definitive=True)
    clock.advance(HOUR + 1)
    await mesh.submit("new")
    assert await mesh.service.status("ci", older.request_id) is not None
    assert await mesh.service.status("ci", younger.request_id) is None


async def test_a_duplicate_never_evicts_its_own_record(
    database: Database, clock: ManualClock
) -> None:
    """Room is made only for what is new: in a full store a finished key is still answered."""
    mesh = Mesh(database, clock, max_items=1)
    await mesh.submit("a")
    await mesh.finish("result")
    for _ in range(3):
        assert (await mesh.submit("a")).status == "completed"
    assert (await mesh.submit("b")).status == "accepted"


async def test_a_store_full_of_unfinished_requests(database: Database, clock: ManualClock) -> None:
    """Nothing may be evicted, so new ones are refused until one has ended."""
    mesh = Mesh(database, clock, max_items=2)
    await mesh.submit("a")
    await mesh.submit("b")
    assert (await mesh.submit("c")).status == "queue_full"
    assert (await mesh.submit("a")).status == "in_progress"
    await mesh.finish()
    clock.advance(1.1)
    assert (await mesh.submit("c")).status == "accepted"
    assert await mesh.requests.size() == 2


async def test_the_size_of_the_store_is_shown(database: Database, clock: ManualClock) -> None:
    """The gauge has the number of requests when they were last counted."""
    mesh = Mesh(database, clock)
    for key in ("a", "b", None):
        await mesh.submit(key)
    await mesh.service.cleanup()
    assert REGISTRY.get_sample_value("towline_idempotency_store_size") == 3


async def test_a_job_that_was_deleted_frees_its_key(database: Database, clock: ManualClock) -> None:
    """A request without its job counts as expired, and is swept."""
    mesh = Mesh(database, clock)
    first = await mesh.submit("a")
    await mesh.finish()
    clock.advance(2)
    assert (await mesh.jobs.prune("done", 10, 1)).rows == 1
    assert await mesh.service.status("ci", first.request_id) is None
    assert (await mesh.submit("a")).status == "accepted"
    await mesh.finish()
    clock.advance(DAY - 100)
    await mesh.jobs.prune("done", 10, 1)
    assert (await mesh.service.cleanup()).rows == 1


async def test_a_count_that_fails_is_everybodys_failure(
    database: Database, clock: ManualClock
) -> None:
    """Who waits for a look shares its fate, and the next one looks again."""
    requests = Watched(database, KEEP, 16_384)
    service = Submit(requests, JobStore(database), clock, SubmitPolicy(), audit_to_log)
    requests.away = True
    failures = await asyncio.gather(
        *[service.submit("ci", numbered(n)) for n in range(5)], return_exceptions=True
    )
    assert [type(failure) for failure in failures] == [Unavailable] * 5
    assert requests.loads == 1
    requests.away = False
    assert (await service.submit("ci", numbered(0))).status == "accepted"
