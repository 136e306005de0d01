"""Celery over a Redis that loses, repeats and keeps silent: SQL decides, and each job ends once."""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from tests.jobs.celery_world import World, alongside, some, world
from tests.servers import RedisServer
from towline.jobs.celery import QUEUE, TASK, CeleryBell, celery_app
from towline.jobs.model import NewJob

EFFECTS = "SELECT count(*) FROM effects"
STARTS = "SELECT count(*) FROM starts"
STARTED_TWICE = "SELECT count(*) FROM (SELECT 1 FROM starts GROUP BY job_id HAVING count(*) > 1) s"


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that belongs to one test, which may do with it what it likes."""
    with RedisServer() as server:
        yield server


@pytest.fixture
async def here(postgres_url: str, own_redis: RedisServer) -> AsyncIterator[World]:
    async with world(postgres_url, own_redis.url) as made:
        yield made


def in_queue(server: RedisServer) -> int:
    with redis.Redis(port=server.port, socket_timeout=5) as client:
        return int(client.llen(QUEUE))


async def until_in_queue(server: RedisServer, wanted: int, patience: float = 10.0) -> None:
    end = time.monotonic() + patience
    while in_queue(server) < wanted:
        assert time.monotonic() < end, f"{in_queue(server)} of {wanted} messages"
        await asyncio.sleep(0.02)


async def test_jobs_run_once_each(here: World) -> None:
    """Two workers share three hundred jobs."""
    workers = [here.start_worker(), here.start_worker()]
    jobs = some(300)
    await here.put(*jobs)
    await here.done(jobs)
    assert await here.number(EFFECTS) == 300
    assert await here.number(STARTED_TWICE) == 0
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(10) for worker in workers] == [0, 0]


async def test_a_message_that_comes_five_times_runs_one_job(here: World) -> None:
    """Sent by Celery itself, to two workers, while the job runs and after it has ended."""
    here.start_worker()
    here.start_worker()
    jobs = some(20, params="0.2")
    await asyncio.gather(*(here.jobs.enqueue(job) for job in jobs))
    app = celery_app(here.redis_url)
    for job in jobs * 5:
        app.send_task(TASK, [job.id])
    await here.done(jobs)
    for job in jobs:
        app.send_task(TASK, [job.id])
    last = NewJob("job_last", "towline", "effect")
    await here.put(last)
    await here.done([last])
    assert await here.number(STARTS) == await here.number(EFFECTS) == 21


async def test_a_redis_that_is_killed_and_loses_everything(
    here: World, own_redis: RedisServer
) -> None:
    """In mid-flight, with workers alive: all jobs end, each begun once and with one effect."""
    jobs = some(500, params="0.02")
    here.jobs.patience_us = 1_000_000
    here.start_worker()
    here.start_worker()
    async with alongside(here.keep_house):
        await here.put(*jobs[:400])
        await here.until(EFFECTS, 50)
        own_redis.kill()
        assert await here.number(EFFECTS) < 350, "it was not in mid-flight"
        await here.put(*jobs[400:])
        await asyncio.sleep(0.5)
        own_redis.start()
        assert in_queue(own_redis) < 400, "it kept what it should have lost"
        await here.done(jobs)
    assert await here.number(EFFECTS) == 500
    assert await here.number(STARTED_TWICE) == 0


async def test_a_killed_workers_jobs_go_to_another(here: World) -> None:
    """Its leases end, the reaper takes the jobs back, and the second attempt ends them."""
    killed = here.start_worker()
    jobs = some(10, kind="hangs_at_first")
    await here.put(*jobs)
    await here.until(STARTS, 10)
    killed.kill()
    async with alongside(here.keep_house):
        here.start_worker()
        await here.done(jobs)
    assert await here.rows("SELECT attempt, count(*) FROM starts GROUP BY 1 ORDER BY 1") == [
        (1, 10),
        (2, 10),
    ]


async def test_delayed_and_retried_jobs_run_when_they_are_due(here: World) -> None:
    """Neither is published before, nor forgotten: the sweeper tells of them in time."""
    here.start_worker()
    later, again = some(1, delay_us=1_500_000)[0], some(2, kind="fails_at_first")[1]
    await here.put(later, again)
    async with alongside(here.keep_house):
        await here.done([later, again])
    waited = await here.rows(
        "SELECT extract(epoch from s.at) - j.created_us / 1e6 FROM starts s JOIN towline_jobs j"
        " ON j.id = s.job_id WHERE s.job_id = 'job_0000'"
    )
    assert waited[0][0] > 1.4
    assert await here.rows("SELECT attempt FROM starts WHERE job_id = 'job_0001' ORDER BY at") == [
        (1,),
        (2,),
    ]


async def test_the_backlog_of_one_repository_flows_through_its_two_slots(
    here: World, own_redis: RedisServer
) -> None:
    """A slot that becomes free calls the next one, without the sweeper and without a storm."""
    here.start_worker()
    here.start_worker()
    jobs = some(80, repo="acme/app", params="0.01")
    await here.put(*jobs)
    await here.done(jobs)
    assert await here.number("SELECT max(beside) FROM effects") <= 2
    assert await here.number(STARTED_TWICE) == 0
    with redis.Redis(port=own_redis.port) as client:
        told = client.info("commandstats")["cmdstat_lpush"]["calls"]
    once_when_new_and_once_when_called = 2 * len(jobs)
    assert told <= 4 * once_when_new_and_once_when_called


async def test_sigterm_lets_jobs_finish_and_gives_back_the_rest(
    here: World, own_redis: RedisServer
) -> None:
    """Short ones end; a long one is queued again as if never begun; messages are not lost."""
    worker = here.start_worker(concurrency=2, drain_seconds=1.0)
    short, long, waiting = some(3)
    short, long = short._replace(params="0.5"), long._replace(params="60")
    await here.put(short, long)
    await here.until(STARTS, 2)
    await here.put(waiting)
    await asyncio.sleep(0.2)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert await here.rows("SELECT id, state, attempts FROM towline_jobs ORDER BY id") == [
        (short.id, "done", 1),
        (long.id, "queued", 0),
        (waiting.id, "queued", 0),
    ]
    assert in_queue(own_redis) == 1


async def test_a_worker_waits_for_a_redis_that_is_not_there_yet(
    here: World, own_redis: RedisServer
) -> None:
    """Down at its start, silent later: it goes on when Redis does, and it can always be stopped."""
    own_redis.kill()
    worker = here.start_worker()
    first, second = some(2)
    await here.put(first)
    await asyncio.sleep(1.5)
    own_redis.start()
    await here.done([first])
    own_redis.pause()
    await here.put(second)
    await asyncio.sleep(0.5)
    own_redis.resume()
    await here.done([second])
    own_redis.pause()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(12) == 0


async def test_strange_messages_do_no_harm(here: World, own_redis: RedisServer) -> None:
    """Unknown tasks, no job, too many, another's job, no message at all: work goes on."""
    worker = here.start_worker()
    remote = NewJob("job_remote", "mesh:scan", "scan")
    await here.jobs.enqueue(remote)
    app = celery_app(here.redis_url)
    app.send_task("other.task", ["job_0000"])
    for arguments in ([], ["job_0000", "job_0001"], [{"id": 1}], ["job_9999"], [remote.id]):
        app.send_task(TASK, arguments)
    with redis.Redis(port=own_redis.port) as client:
        client.lpush(QUEUE, "no message", "{}", "[]")
    jobs = some(3)
    await here.put(*jobs)
    await here.done(jobs)
    assert worker.poll() is None
    assert await here.rows("SELECT state FROM towline_jobs WHERE id = 'job_remote'") == [
        ("queued",)
    ]


async def test_a_silent_redis_holds_nobody_up(own_redis: RedisServer) -> None:
    """Ringing takes no time, closing keeps its deadline, and what waited arrives afterwards."""
    bell, closed = CeleryBell(own_redis.url, timeout=1.0), CeleryBell(own_redis.url, timeout=10.0)
    bell.ring(["job_first"])
    await until_in_queue(own_redis, 1)
    own_redis.pause()
    longest, end = 0.0, time.monotonic() + 2
    number = 0
    while time.monotonic() < end:
        number += 1
        began = time.monotonic()
        bell.ring([f"job_{number}"])
        closed.ring([f"job_{number}"])
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - began)
    assert longest < 1.5
    assert bell.room == 0
    began = time.monotonic()
    closed.close(0.5)
    assert time.monotonic() - began < 2
    own_redis.resume()
    await until_in_queue(own_redis, 1 + number)
    bell.close()


async def test_nothing_grows_without_limit(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the buffer while Redis is away, nor the log, nor a queue that nobody takes from."""
    bell = CeleryBell(own_redis.url, most_buffered=50)
    own_redis.kill()
    bell.ring([f"job_{number}" for number in range(30)] * 2)
    bell.ring([f"more_{number}" for number in range(1_000)])
    await asyncio.sleep(1.0)
    assert bell.room == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    own_redis.start()
    await until_in_queue(own_redis, 50)
    bell.close()
    limited = CeleryBell(own_redis.url, most_in_queue=60)
    for number in range(5):
        limited.ring([f"late_{number}_{place}" for place in range(100)])
        await asyncio.sleep(0.02)
    limited.close()
    assert in_queue(own_redis) == 60


async def test_closing_says_what_is_left_to_say(own_redis: RedisServer) -> None:
    """Rings of the last moment are published; those after it are not."""
    bell = CeleryBell(own_redis.url)
    bell.ring([f"job_{number}" for number in range(2_000)])
    bell.close()
    bell.ring(["job_late"])
    assert in_queue(own_redis) == 2_000


@pytest.mark.parametrize("module", ["celery", "celery_worker"])
def test_a_missing_package_is_named(module: str) -> None:
    """Where Celery is not installed, the error says how to get it."""
    program = (
        "import sys; sys.modules['celery'] = None\n"
        f"try: import towline.jobs.{module}\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("MissingExtra ")
    assert "pip install 'towline[celery]'" in done.stdout


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://h:1/2?allow_eviction=1", "redis://h:1/2"),
        ("redis://:p%40ss%2F@h", "redis://default:p%40ss%2F@h:6379/0"),
        ("rediss://me:secret@[::1]:7/3", "rediss://me:secret@[::1]:7/3"),
    ],
)
def test_celery_understands_our_redis_url(url: str, broker: str) -> None:
    """Without the options that are ours, with TLS that checks certificates, password kept."""
    app = celery_app(url)
    assert app.conf.broker_url == broker
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED} if url.startswith("rediss") else None
    assert (app.connection_for_write().ssl or None) == tls


async def test_a_password_with_strange_characters(own_redis: RedisServer) -> None:
    """It arrives as it was meant."""
    with redis.Redis(port=own_redis.port) as client:
        client.config_set("requirepass", "p@s/s:%")
        bell = CeleryBell(f"redis://:p%40s%2Fs%3A%25@127.0.0.1:{own_redis.port}/0")
        bell.ring(["job_1"])
        bell.close()
        assert client.llen(QUEUE) == 1
