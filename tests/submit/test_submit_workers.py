"""Remote workers: leases, takeovers, results with their digests, retries and lost answers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json

import pytest

from tests.clocks import ManualClock
from tests.submit.submitting import Mesh
from towline import payload_hash
from towline.jobs.model import Backoff, Claimed, NewJob, Wish
from towline.submit.rules import BadDigest
from towline.submit.service import UnknownJob
from towline.submit.store import RequestRecord
from towline_once.db.statement import Database
from towline_once.errors import Stale

RESULT = {"b": 2, "a": [1.5, "ü"]}
KEY = b"shared secret"


@pytest.fixture
def mesh(database: Database, clock: ManualClock) -> Mesh:
    return Mesh(
        database, clock, hmac_key=KEY, max_attempts=2, backoff=Backoff(10_000_000, 60_000_000)
    )


async def record_of(mesh: Mesh, job: Claimed) -> RequestRecord:
    again = await mesh.submit()
    assert again.job_id == job.id
    found = await mesh.service.status("ci", again.request_id)
    assert found is not None
    return found[1]


async def test_a_claim_brings_the_work(mesh: Mesh, clock: ManualClock) -> None:
    """Kind, params, attempt, token and the end of the lease; each job goes to one worker."""
    receipt = await mesh.submit(n=5)
    offers = await asyncio.gather(*[mesh.offer("other", "build") for _ in range(3)])
    [job] = [offer.job for offer in offers if offer.job is not None]
    assert (job.id, job.kind, job.attempts) == (receipt.job_id, "build", 1)
    assert json.loads(job.params or "") == {"n": 5}
    assert abs(job.lease_expires_us - clock.now_us() - 60e6) < 30e6


async def test_kinds_are_asked_for(mesh: Mesh) -> None:
    """A worker gets only kinds that it named, the first ones first, and nothing of Towline's."""
    await mesh.jobs.enqueue(NewJob("job_own", "towline", "build"))
    for kind in ("a", "b"):
        await mesh.submit(kind, kind=kind)
    assert (await mesh.offer("c", "towline")).job is None
    assert (await mesh.claim("b", "a")).kind == "b"
    assert (await mesh.claim("b", "a")).kind == "a"
    assert (await mesh.offer("b", "a")).job is None


async def test_the_reaper_returns_the_same_job(mesh: Mesh, clock: ManualClock) -> None:
    """After the lease the job has its id and its request, and the next worker a higher token."""
    receipt = await mesh.submit()
    first = await mesh.claim()
    clock.advance(61)
    [reaped] = await mesh.jobs.reap(10)
    assert (reaped.id, reaped.state) == (receipt.job_id, "queued")
    assert (await mesh.submit()).job_id == receipt.job_id
    second = await mesh.claim()
    assert (second.id, second.attempts) == (first.id, 2)
    assert second.token > first.token


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_late_worker_is_stale(mesh: Mesh, clock: ManualClock, taken_over: bool) -> None:
    """Once its job was taken back, nothing that it says counts."""
    await mesh.submit()
    late = await mesh.claim()
    clock.advance(61)
    await mesh.jobs.reap(10)
    if taken_over:
        await mesh.claim()
    for word in (mesh.complete(late, RESULT), mesh.fail(late), mesh.heartbeat(late)):
        with pytest.raises(Stale):
            await word
    assert (await record_of(mesh, late)).result is None


async def test_late_but_not_yet_missed(mesh: Mesh, clock: ManualClock) -> None:
    """A lease that has run out and was not taken back loses no work."""
    await mesh.submit()
    job = await mesh.claim()
    clock.advance(61)
    await mesh.complete(job, RESULT)
    assert await mesh.jobs.reap(10) == []
    assert (await mesh.submit()).status == "completed"


async def test_heartbeats_keep_a_lease(mesh: Mesh, clock: ManualClock) -> None:
    """Each one lasts as long as the worker asked for at first, or asks for now."""
    await mesh.submit()
    job = await mesh.claim(lease=120)
    for _ in range(3):
        clock.advance(100)
        end = await mesh.heartbeat(job)
        assert abs(end - clock.now_us() - 120e6) < 30e6
        assert await mesh.jobs.reap(10) == []
    assert abs(await mesh.heartbeat(job, lease_seconds=600) - clock.now_us() - 600e6) < 30e6
    clock.advance(500)
    assert await mesh.jobs.reap(10) == []
    assert abs(await mesh.heartbeat(job) - clock.now_us() - 600e6) < 30e6


async def test_results_are_kept_with_their_digests(mesh: Mesh) -> None:
    """Both digests are checked, kept beside the result, and told to who asks."""
    await mesh.submit()
    job = await mesh.claim()
    sha256 = payload_hash(RESULT)
    form = '{"a":[1.5,"ü"],"b":2}'.encode()
    mac = hmac.new(KEY, form, hashlib.sha256).hexdigest()
    assert await mesh.complete(job, RESULT, sha256=sha256, hmac=mac) == sha256
    record = await record_of(mesh, job)
    assert (record.sha256, record.hmac) == (sha256, mac)
    assert json.loads(record.result or "") == RESULT
    assert payload_hash(json.loads(record.result or "")) == sha256


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"hmac": "0" * 64}])
async def test_bad_digests_write_nothing(mesh: Mesh, wrong: dict[str, str]) -> None:
    """The job stays with its worker, who may send the result again."""
    await mesh.submit()
    job = await mesh.claim()
    with pytest.raises(BadDigest):
        await mesh.complete(job, RESULT, **wrong)
    record = await record_of(mesh, job)
    assert (record.state, record.result, record.sha256) == ("running", None, None)
    assert await mesh.complete(job, RESULT) == payload_hash(RESULT)


async def test_a_completion_whose_answer_was_lost(mesh: Mesh) -> None:
    """The same completion again is a success; another one under that token is not."""
    await mesh.submit()
    job = await mesh.claim()
    for _ in range(3):
        await mesh.complete(job, RESULT)
    with pytest.raises(Stale):
        await mesh.complete(job, "another")
    with pytest.raises(Stale):
        await mesh.fail(job)
    assert json.loads((await record_of(mesh, job)).result or "") == RESULT


async def test_a_failed_attempt_is_tried_again(mesh: Mesh, clock: ManualClock) -> None:
    """After the pause, under the same id, until the attempts are used up."""
    await mesh.submit()
    first = await mesh.claim()
    assert await mesh.fail(first, "network") == (10_000_000, None)
    assert (await mesh.offer()).job is None
    clock.advance(11)
    second = await mesh.claim()
    assert (second.id, second.attempts) == (first.id, 2)
    assert await mesh.fail(second, "network") == (0, "max_attempts")
    record = await record_of(mesh, second)
    assert (record.state, record.error, record.reason) == ("dead", "network", "max_attempts")


async def test_a_definitive_failure_is_final(mesh: Mesh) -> None:
    """A worker that knows it is useless says so, and the job is not tried again."""
    await mesh.submit()
    job = await mesh.claim()
    assert await mesh.fail(job, "no such branch", definitive=True) == (0, "definitive")
    assert (await mesh.submit()).status == "failed"


@pytest.mark.parametrize("definitive", [False, True])
async def test_a_failure_whose_answer_was_lost(mesh: Mesh, definitive: bool) -> None:
    """The same failure again gives the same verdict and counts once."""
    await mesh.submit()
    job = await mesh.claim()
    verdicts = {await mesh.fail(job, definitive=definitive) for _ in range(3)}
    assert len(verdicts) == 1
    assert (await record_of(mesh, job)).attempts == 1


async def test_a_job_whose_workers_die_ends(mesh: Mesh, clock: ManualClock) -> None:
    """Attempts are counted at the claim; the last lost lease makes the request fail."""
    await mesh.submit()
    for _ in range(2):
        await mesh.claim()
        clock.advance(61)
        await mesh.jobs.reap(10)
    again = await mesh.submit()
    assert (again.status, again.error) == ("failed", "its workers died or were cut off")


async def test_unknown_jobs_and_those_of_others(mesh: Mesh) -> None:
    """A remote worker cannot touch a job of Towline's own, even with its token."""
    await mesh.jobs.enqueue(NewJob("job_own", "towline", "delivery"))
    [own] = await mesh.jobs.claim(Wish(["towline"], "embedded", 1, 60_000_000, 1))
    for job in (own, own._replace(id="job_none")):
        for word in (mesh.complete(job, RESULT), mesh.fail(job), mesh.heartbeat(job)):
            with pytest.raises(UnknownJob):
                await word
    record = await mesh.jobs.read("job_own")
    assert record is not None
    assert (record.state, record.lease_expires_us) == ("running", own.lease_expires_us)
