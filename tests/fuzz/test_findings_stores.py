"""What fuzzing found in stores and in the programs beside the service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from celery.exceptions import InvalidTaskError
from kombu.message import Message

from tests.clocks import ManualClock
from tests.fuzz.redis_place import SOUND, RedisPlace, bulk, greeting
from tests.fuzz.target import TOKEN
from tests.fuzz.targets_programs import _reported
from towline.config import Settings
from towline.db import database_for
from towline.doctor.servers import look_at_redis
from towline.fix.fixers.config import LlmConfig
from towline.fix.fixers.llm import ModelApi
from towline.fix.model import Errand, StageRecord
from towline.fix.plan import diff_in
from towline.fix.store import RunStore
from towline.forges.github.client import github_client
from towline.forges.gitlab.client import GitLabApi
from towline.git.command import GitEnd, failure
from towline.integrations.jenkins.client import JenkinsHttp
from towline.jobs.celery import TASK
from towline.jobs.celery_worker import CeleryWorker
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.sandbox.confined import _heard
from towline_once.backends import backend_for
from towline_once.coordination.breaker_registry import BreakerBoard
from towline_once.coordination.circuit_breaker import BreakerService, Limits
from towline_once.coordination.memory import MemoryDocuments
from towline_once.coordination.redis import RedisDocuments, RedisLeases, RedisRates, RedisSlots
from towline_once.db.redis.client import Redis
from towline_once.errors import Rejected, TowlineError, Unavailable
from towline_once.idempotency.redis import RedisRecords

HEAD = b"id\n1\n1700000000000000\n"
ERRAND = Errand(cause="request", forge="github", repo="octo-org/app", base_ref="main")
JOB = NewJob("job_1", OWN_QUEUE, "fix", "{}", "octo-org/app")


@pytest.fixture
def place() -> Iterator[RedisPlace]:
    opened = RedisPlace()
    yield opened
    opened.close()


def asked(
    place: RedisPlace, hello: bytes, reply: bytes, act: Callable[[Redis], Awaitable[Any]]
) -> None:
    """Within twice the deadline that a call has."""

    async def within(redis: Redis) -> None:
        async with asyncio.timeout(10):
            await act(redis)

    place.play(hello, reply, within)


@pytest.mark.parametrize(
    "hello",
    [
        greeting("6.²".encode(), b""),
        greeting(b"0" * 5000, b""),
        greeting(b"", b""),
    ],
    ids=["other digits", "a long version", "no version"],
)
def test_a_redis_of_another_version_is_refused(place: RedisPlace, hello: bytes) -> None:
    """A version that cannot be read will not do."""
    with pytest.raises(Rejected, match=r"6\.2 or newer") as refused:
        asked(place, hello, b"", lambda redis: redis.connect())
    assert len(str(refused.value)) < 300


def test_what_does_not_greet_like_redis_is_unavailable(place: RedisPlace) -> None:
    """Whatever listens there: redis-py trips over its answers in many ways."""
    with pytest.raises(Unavailable, match="does not speak its protocol"):
        asked(place, b"+OK\r\n+OK\r\n+OK\r\n", b"", lambda redis: redis.connect())


def test_a_password_that_comes_back_is_not_quoted(place: RedisPlace) -> None:
    """A proxy may repeat the command that it did not understand."""
    hello = b"-ERR AUTH octocat %b\r\n" % TOKEN.encode()
    with pytest.raises(Rejected, match=r"AUTH octocat \*\*\*") as refused:
        asked(place, hello, b"", lambda redis: redis.connect())
    assert TOKEN not in str(refused.value)


def test_an_answer_that_cannot_be_read_fails_its_own_command(place: RedisPlace) -> None:
    """It used to fail all the others, and to leave the one that it was for waiting for ever."""
    with pytest.raises(Unavailable, match="does not speak its protocol"):
        asked(place, SOUND, b":1\r\n", lambda redis: RedisLeases(redis).peek("n"))


@pytest.mark.parametrize(
    "call",
    [
        lambda redis: RedisLeases(redis).peek("n"),
        lambda redis: RedisLeases(redis).enqueue("n", "h", "a", 1, 1),
        lambda redis: RedisSlots(redis).take("n", 1, "h", 1),
        lambda redis: RedisRates(redis).hit("k", 1, 1, 1),
        lambda redis: RedisDocuments(redis).read("d"),
        lambda redis: RedisRecords(redis).read("t", "k"),
        lambda redis: RedisRecords(redis).digest_key(),
    ],
    ids=["lease", "ticket", "slot", "rate", "document", "record", "key"],
)
def test_what_others_wrote_to_redis_is_one_clear_error(
    place: RedisPlace, call: Callable[[Redis], Awaitable[Any]]
) -> None:
    """A line that no script of Towline's returns is not read as something else."""
    with pytest.raises(Rejected, match="did not write"):
        asked(place, SOUND, bulk(HEAD + b'["x"]'), call)


def test_what_redis_says_is_shown_in_a_short_line(place: RedisPlace) -> None:
    """Errors may have any length, and any characters."""
    reply = b"-ERR a\tb" + b"x" * 5000 + b"\r\n"
    with pytest.raises(Rejected) as refused:
        asked(place, SOUND, reply, lambda redis: redis.call("PING"))
    said = str(refused.value)
    assert "a b" in said
    assert len(said) < 400


def test_the_doctor_reads_no_clock_from_other_words(place: RedisPlace) -> None:
    """A Redis that does not tell its time is looked at all the same."""
    settings = Settings(redis_url=place.url)
    facts = bulk(b"redis_version:7.2.4\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n")

    async def looking(redis: Redis) -> None:
        assert [one.check for one in await look_at_redis(settings, 5.0)] == ["redis"]

    place.play(SOUND, facts, looking)


# ------------------------------------------------------------------ breakers and runs


def a_breaker(documents: MemoryDocuments) -> BreakerService:
    limits = Limits(60_000_000, 0.5, 2, 30_000_000)
    clock = ManualClock()
    return BreakerService(documents, clock, "forge", limits, 1_000_000, lambda *_, **__: None)


@pytest.mark.parametrize(
    "body", ["{", "[]", "{}", '{"buckets":[[1]]}', '{"buckets":[],"opened_us":"x"}', "null"]
)
async def test_a_breaker_outlives_a_damaged_document(body: str) -> None:
    """It is closed, as a new one is, and what it writes next can be read again."""
    documents = MemoryDocuments(ManualClock())
    await documents.swap("breaker forge", 0, body)
    breaker = a_breaker(documents)
    assert (await breaker.report()).state == "closed"
    for _ in range(2):
        permit = await breaker.admit()
        assert permit is not None
        await permit.failed()
    assert (await breaker.report()).state == "open"
    await breaker.reset("octocat")
    assert (await breaker.report()).state == "closed"


async def test_a_breaker_of_a_newer_version_is_understood() -> None:
    """During an upgrade both versions change one document."""
    clock = ManualClock()
    documents = MemoryDocuments(clock)
    body = {"opened_us": clock.now_us(), "trips": 3, "epoch": 4, "buckets": [], "later": {"a": 1}}
    await documents.swap("breaker forge", 0, orjson.dumps(body).decode())
    report = await a_breaker(documents).report()
    assert (report.state, report.trips) == ("open", 3)


@pytest.mark.parametrize("roster", ["{", '{"a":1}', '[1,null,{},"forge"]'])
async def test_a_damaged_list_of_breakers_hides_none_that_is_used(roster: str) -> None:
    """Whoever uses a breaker puts it on the list again."""
    documents = MemoryDocuments(ManualClock())
    await documents.swap("breakers", 0, roster)
    board = BreakerBoard(documents, lambda name: a_breaker(documents))
    await board.open("forge").admit()
    assert [one.name for one in await board.views()] == ["forge"]


async def test_a_name_with_half_characters_can_be_noted(tmp_path: Path) -> None:
    """A repository may hold files whose names are no text; what is said of them is stored."""
    database = database_for(f"sqlite:///{tmp_path}/a.db")
    runs = RunStore(database)
    await runs.get_or_create("key", "event", ERRAND, "towline/a", JOB)
    run = await runs.begin("key", 3)
    assert run is not None
    said: dict[str, object] = {"summary": "changed \udcff.txt"}
    stage = StageRecord("PATCH", 1, "passed", "d", "", said, "", 5, 1.0)
    assert await runs.record("key", run.token, stage)
    back = await runs.read("key")
    assert back is not None
    assert back.stages[0].output == {"summary": "changed ?.txt"}
    await database.aclose()


@pytest.mark.parametrize(
    "errand", ["{", "[]", '{"cause":"failure"}', '{"forge":1}', '{"advisory":[1]}', '{"more":[]}']
)
async def test_a_damaged_errand_is_one_clear_error(tmp_path: Path, errand: str) -> None:
    """It says which run it is."""
    database = database_for(f"sqlite:///{tmp_path}/a.db")
    runs = RunStore(database)
    run, _ = await runs.get_or_create("key", "event", ERRAND, "towline/a", JOB)
    with sqlite3.connect(tmp_path / "a.db") as other:
        other.execute("UPDATE towline_runs SET errand = ?", [errand])
    other.close()
    with pytest.raises(Rejected, match=f"run {run.run_id} cannot be read"):
        await runs.read("key")
    await database.aclose()


async def test_a_damaged_run_does_not_hide_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A listing has the others, as many as were asked for, and the log names the damaged one."""
    database = database_for(f"sqlite:///{tmp_path}/a.db")
    runs = RunStore(database)
    made = []
    for name in ("one", "two", "three", "four"):
        errand = replace(ERRAND, repo=f"octo/{name}")
        run, _ = await runs.get_or_create(name, name, errand, f"towline/{name}", JOB)
        made.append(run.run_id)
    with sqlite3.connect(tmp_path / "a.db") as other:
        other.execute("UPDATE towline_runs SET errand = '{' WHERE run_key = 'three'")
    other.close()
    first = await runs.listing(None, None, "", 2)
    assert [run.run_id for run in first] == [made[3], made[1]]
    rest = await runs.listing(None, None, first[-1].run_id, 2)
    assert [run.run_id for run in rest] == [made[0]]
    assert len(await runs.stranded(10, -1, -1)) == 3
    assert made[2] in caplog.text
    await database.aclose()


def test_a_damaged_patch_is_no_patch() -> None:
    """Half of a patch must not be applied."""
    assert diff_in({"diff_base64": "AAAA"}) == b"\0\0\0"
    with pytest.raises(Rejected, match="stored patch"):
        diff_in({"diff_base64": "AAAAA"})


# ------------------------------------------------------------------ programs and addresses


@pytest.mark.parametrize("job_id", ['"\\ud800"', '"\\u0000"', '""', "{}", f'"{"x" * 300}"'])
async def test_a_message_with_no_possible_job_is_thrown_away(job_id: str) -> None:
    """The store is not even asked, and no hand stays busy."""
    nobody: Any = SimpleNamespace()
    worker = CeleryWorker("redis://h", nobody, nobody, nobody, ManualClock(), 1)
    body = f"[[{job_id}], {{}}]".encode()
    said_in: Any = Message
    message = said_in(
        body, content_type="application/json", content_encoding="utf-8", headers={"task": TASK}
    )
    with pytest.raises(InvalidTaskError, match="names no job"):
        worker._strategy()(message)
    assert worker._hands.acquire(blocking=False)


@pytest.mark.parametrize(
    "report",
    [b'{"status":"0"}', b'{"status":false}', b"[" * 100_000, b'{"a":"%b"}' % (b"x" * 60_000)],
    ids=["a text", "a switch", "too deep", "no status"],
)
async def test_a_strange_report_is_no_success(report: bytes) -> None:
    """A command counts as well ended only if its status was told as the number that it is."""
    ran = await _reported(report[:65_000], "out")
    assert not ran.succeeded
    assert ran.trouble is None or len(ran.trouble) < 1000


async def test_a_report_without_an_end_is_not_kept() -> None:
    """A command that gets hold of the pipe cannot fill the service's memory by it."""
    hear, tell = os.pipe()
    writing = asyncio.create_task(asyncio.to_thread(_writing, tell))
    assert await _heard(os.fdopen(hear, "rb")) == {}
    assert await writing < 4_000_000


def _writing(pipe: int) -> int:
    """How much is taken before the other end closes."""
    written = os.write(pipe, b'{"status":0,"a":"')
    with os.fdopen(pipe, "wb", buffering=0) as file, contextlib.suppress(BrokenPipeError):
        while written < 64_000_000:
            written += file.write(b"x" * 60_000)
    return written


async def test_trouble_is_told_in_a_short_line() -> None:
    """Whatever the supervisor says went wrong."""
    ran = await _reported(b'{"trouble":"%b"}' % (b"x\\n" * 5000), "out")
    assert ran.trouble is not None
    assert len(ran.trouble) < 1000
    assert "\n" not in ran.trouble


@pytest.mark.parametrize("words", ["permission ", "repository ", "error in ", "Remote branch "])
def test_what_git_says_is_read_once(words: str) -> None:
    """A far side that repeats the beginning of a refusal costs nothing."""
    began = time.process_time()
    failure("fetch", GitEnd(128, b"", words * 6000))
    assert time.process_time() - began < 1


@pytest.mark.parametrize("make", [backend_for, database_for])
def test_a_store_at_no_url_is_refused(make: Callable[[str], object]) -> None:
    """With Towline's own error, and without the password."""
    with pytest.raises(TowlineError) as refused:
        make("postgresql://octocat:hunter22@[x/d")
    assert "hunter22" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["https://h/\udcff", f"https://{'xn--' * 100}"], ids=["path", "host"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda url: github_client(url, ManualClock()),
        lambda url: GitLabApi(url, ManualClock(), TOKEN, 5.0),
        lambda url: JenkinsHttp(url, ManualClock(), "octocat", TOKEN, 5.0),
        lambda url: ModelApi(LlmConfig(model="m", provider="openai", url=url, api_key=TOKEN)),
    ],
    ids=["github", "gitlab", "jenkins", "model"],
)
def test_a_host_of_other_letters_is_refused(make: Callable[[str], Any], address: str) -> None:
    """Of letters that no name of a host can have, as of anything that is no URL."""
    with pytest.raises(Rejected, match="must be like"):
        make(address)


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    """Also one that is no text."""
    assert database_for(f"sqlite:///{tmp_path}/\udcff.db") is not None
