"""Ruling 25: a write that is sent twice with one key happens once, on the running service."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.app.control_plane import is_problem
from tests.clocks import ManualClock
from tests.http.front_door import FrontDoor
from tests.http.writes import (
    AS_DEPUTY,
    AS_OPERATOR,
    REBUILD,
    TOKENS,
    commands_of,
    tow,
    with_key,
    writes_on,
)
from towline.http.auth import make_key
from towline.jobs.model import OWN_QUEUE, NewJob, Settlement, Wish
from towline_once.asgi.exchange import KEY_HEADERS

SUBMISSION = {"kind": "build", "params": {"n": 1}}
CLAIM = {"kinds": ["build"], "worker": "w", "lease_seconds": 60}
DAY = 86_400.0


@pytest.fixture
async def door(sql_url: str) -> AsyncIterator[FrontDoor]:
    """A service with a token for GitHub, on each SQL backend in turn."""
    async with writes_on(sql_url, **TOKENS) as opened:
        yield opened


@pytest.fixture
async def local(sqlite_url: str) -> AsyncIterator[FrontDoor]:
    """For what does not depend on the store."""
    async with writes_on(sqlite_url, **TOKENS) as opened:
        yield opened


def replayed(answer: httpx2.Response) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


@pytest.mark.parametrize("header", KEY_HEADERS)
async def test_a_command_sent_twice_is_one_job(door: FrontDoor, header: str) -> None:
    """The retry has the first answer's status and body, and says that it is a replay."""
    path = f"{await tow(door.service)}/command"
    headers = with_key("order-7", header)
    first, second = [await door.client.post(path, json=REBUILD, headers=headers) for _ in range(2)]
    assert (first.status_code, second.status_code) == (202, 202)
    assert second.content == first.content
    assert (replayed(first), replayed(second)) == (False, True)
    assert [job.id for job in await commands_of(door)] == [first.json()["job_id"]]
    other = await door.client.post(path, json={"command": "/why"}, headers=headers)
    assert is_problem(other, 409, "key_collision")


@pytest.mark.parametrize("header", KEY_HEADERS)
async def test_a_submission_sent_twice_is_one_job(door: FrontDoor, header: str) -> None:
    """A header is as good as the member; the retry is told `dedup` with the same ids."""
    headers = with_key("order-7", header)
    first, second = [
        await door.client.post("/mesh/submit_request", json=SUBMISSION, headers=headers)
        for _ in range(2)
    ]
    assert (first.status_code, second.status_code) == (200, 200)
    told, again = first.json(), second.json()
    assert (told["dedup"], again["dedup"]) == (False, True)
    assert (again["job_id"], again["request_id"]) == (told["job_id"], told["request_id"])
    assert len(await door.jobs()) == 1
    other = SUBMISSION | {"params": {"n": 2}}
    answer = await door.client.post("/mesh/submit_request", json=other, headers=headers)
    assert is_problem(answer, 409, "key_collision")


async def test_which_of_several_keys_counts(local: FrontDoor) -> None:
    """The member of a submission, then the headers in their order."""
    path = f"{await tow(local.service)}/command"
    three = dict(zip(KEY_HEADERS, ("a", "b", "c"), strict=True)) | AS_OPERATOR
    first = await local.client.post(path, json=REBUILD, headers=three)
    assert replayed(await local.client.post(path, json=REBUILD, headers=with_key("a")))
    two = {name: three[name] for name in KEY_HEADERS[1:]} | AS_OPERATOR
    second = await local.client.post(path, json=REBUILD, headers=two)
    assert not replayed(second)
    retry = await local.client.post(path, json=REBUILD, headers=with_key("b", KEY_HEADERS[1]))
    assert retry.content == second.content != first.content
    body = SUBMISSION | {"idempotency_key": "m"}
    sent = [
        await local.client.post("/mesh/submit_request", json=given, headers=headers)
        for given, headers in ((body, three), (body, AS_OPERATOR), (SUBMISSION, with_key("a")))
    ]
    assert [answer.json()["dedup"] for answer in sent] == [False, True, False]


async def test_every_write_of_the_table_is_repeatable(local: FrontDoor) -> None:
    """Each POST that succeeds is replayed to the byte, and is carried out once."""
    path = await tow(local.service)
    client, service = local.client, local.service
    await service.jobs.enqueue(NewJob("job_1", OWN_QUEUE, "probe"))
    (held,) = await service.jobs.claim(Wish([OWN_QUEUE], "w", 1, 60_000_000, 1))
    assert await service.jobs.settle(Settlement(held.id, held.token, "done"))
    await client.post("/mesh/submit_request", json=SUBMISSION, headers=AS_OPERATOR)
    sent: list[httpx2.Response] = []
    writes: list[tuple[str, Any]] = [
        (f"{path}/command", REBUILD),
        ("/api/prs/commands", REBUILD | {"prs": ["octo-org/app#7"]}),
        ("/api/reconciler/run?dry_run=true", None),
        ("/api/circuit-breaker/reset", None),
        ("/api/jobs/job_1/redeliver", None),
        ("/mesh/claim", CLAIM),
    ]
    for target, body in writes:
        sent = [await client.post(target, json=body, headers=with_key("k")) for _ in range(2)]
        assert sent[0].is_success, (target, sent[0].text)
        assert sent[1].content == sent[0].content, target
        assert sent[1].status_code == sent[0].status_code
        assert [replayed(one) for one in sent] == [False, True], target
    job = sent[0].json()
    for ending, body in (
        ("heartbeat", {"token": job["token"]}),
        ("complete", {"token": job["token"], "result": {"ok": True}}),
    ):
        target = f"/mesh/jobs/{job['job_id']}/{ending}"
        sent = [await client.post(target, json=body, headers=with_key("k")) for _ in range(2)]
        assert sent[0].is_success, sent[0].text
        assert (replayed(sent[1]), sent[1].content) == (True, sent[0].content), target


async def test_a_replayed_claim_starts_no_attempt(local: FrontDoor) -> None:
    """Same job and token, also when the lease has ended; then the token is stale, and says so."""
    client = local.client
    await client.post("/mesh/submit_request", json=SUBMISSION, headers=AS_OPERATOR)
    first = await client.post("/mesh/claim", json=CLAIM, headers=with_key("c1"))
    local.clock.advance(3600)
    await local.service.jobs.reap(100)
    again = await client.post("/mesh/claim", json=CLAIM, headers=with_key("c1"))
    assert (replayed(again), again.content) == (True, first.content)
    job = first.json()
    late = {"token": job["token"], "result": {}}
    answer = await client.post(
        f"/mesh/jobs/{job['job_id']}/complete", json=late, headers=with_key("c2")
    )
    assert is_problem(answer, 409, "stale_lease")
    fresh = await client.post("/mesh/claim", json=CLAIM, headers=with_key("c3"))
    assert fresh.json()["token"] > job["token"]


# ---------------------------------------------------------------------- whose key it is


async def test_a_key_belongs_to_its_sender_and_its_path(door: FrontDoor) -> None:
    """Another caller's key, and the same key at another address, are other keys."""
    one, two = await tow(door.service, 1), await tow(door.service, 2)
    sent = [
        await door.client.post(f"{path}/command", json=REBUILD, headers={"x-request-id": "k"} | who)
        for path, who in ((one, AS_OPERATOR), (one, AS_DEPUTY), (two, AS_OPERATOR))
    ]
    assert [answer.status_code for answer in sent] == [202] * 3
    assert not any(map(replayed, sent))
    assert len({answer.json()["job_id"] for answer in sent}) == 3


async def test_keys_of_one_name_do_not_share_idempotency_keys(local: FrontDoor) -> None:
    """The names of API keys need not be unique, so it is the API key itself that counts."""
    store, secret = local.service.keyring._store, local.service.secret()
    made = [await make_key(store, "ci", ["submit"], secret) for _ in range(2)]
    bodies = [SUBMISSION | {"idempotency_key": "k"}, SUBMISSION | {"params": {"n": 2}}]
    for body in bodies:
        sent = [
            await local.client.post(
                "/mesh/submit_request",
                json=body,
                headers={"x-api-key": key.text, "idempotency-key": "h"},
            )
            for key in made
        ]
        assert [answer.status_code for answer in sent] == [200, 200]
        assert sent[0].json()["job_id"] != sent[1].json()["job_id"]


async def test_authentication_comes_first(local: FrontDoor) -> None:
    """Without a key, with a wrong one and with a revoked one there is a 401, and no replay."""
    path = f"{await tow(local.service)}/command"
    keys = local.service.keyring._store
    made = await make_key(keys, "ci", ["command"], local.service.secret())
    mine = {"x-api-key": made.text, "idempotency-key": "k"}
    assert (await local.client.post(path, json=REBUILD, headers=mine)).status_code == 202
    await keys.revoke(made.prefix)
    local.clock.advance(6)
    for headers in (mine, {"idempotency-key": "k"}, {"x-api-key": "x", "idempotency-key": "k"}):
        answer = await local.client.post(path, json=REBUILD, headers=headers)
        assert is_problem(answer, 401, "unauthorized")
        assert not replayed(answer)


@pytest.mark.parametrize("header", KEY_HEADERS)
@pytest.mark.parametrize("key", ["", '""', "k" * 256, '"open', "caf\u00e9"])
async def test_a_key_of_bad_form_is_refused(local: FrontDoor, header: str, key: str) -> None:
    """400 `key_invalid` at every write, and nothing is queued."""
    path = f"{await tow(local.service)}/command"
    headers = [(name.encode(), value.encode()) for name, value in AS_OPERATOR.items()]
    headers.append((header.lower().encode(), key.encode("latin-1")))
    for target, body in ((path, REBUILD), ("/mesh/submit_request", SUBMISSION)):
        answer = await local.client.post(target, json=body, headers=headers)
        assert is_problem(answer, 400, "key_invalid"), answer.text
    assert await local.jobs() == []


# ---------------------------------------------------------------------- what is kept


async def test_a_refusal_is_not_kept(door: FrontDoor) -> None:
    """After any 4xx the key is free, also for another body."""
    path = f"{await tow(door.service, state='MERGED')}/command"
    for _ in range(4):
        answer = await door.client.post(path, json=REBUILD, headers=with_key("k"))
        assert is_problem(answer, 409, "not_now")
    wrong = await door.client.post(path, json={"command": "/explode"}, headers=with_key("k"))
    assert is_problem(wrong, 422, "unknown_command")
    await tow(door.service, state="CHECKS_FAILED")
    first = await door.client.post(path, json=REBUILD, headers=with_key("k"))
    assert (first.status_code, replayed(first)) == (202, False)


async def test_an_answer_is_kept_for_a_day(sqlite_url: str) -> None:
    """Then the key is free, and its record is deleted by itself."""
    clock = ManualClock()
    async with writes_on(sqlite_url, clock=clock, **TOKENS) as door:
        path = f"{await tow(door.service)}/command"
        first = await door.client.post(path, json=REBUILD, headers=with_key("k"))
        clock.advance(DAY - 60)
        assert replayed(await door.client.post(path, json=REBUILD, headers=with_key("k")))
        clock.advance(120)
        again = await door.client.post(path, json=REBUILD, headers=with_key("k"))
        assert (again.status_code, replayed(again)) == (202, False)
        assert again.json()["job_id"] != first.json()["job_id"]
        clock.advance(2 * DAY)
        chores = {chore.name: chore for chore in door.service._upkeep()._chores}
        await chores["tidy repeatable writes"].work()
        assert await door.service._ledger._records.size() == 0


async def test_a_large_answer_is_repeated_whole(local: FrontDoor) -> None:
    """The results of 500 commands come again to the byte."""
    names = [f"octo-org/app#{number}" for number in range(1, 501)]
    body = REBUILD | {"prs": names}
    sent = [
        await local.client.post("/api/prs/commands", json=body, headers=with_key("k"))
        for _ in range(2)
    ]
    assert len(sent[0].content) > 32_768
    assert (replayed(sent[1]), sent[1].content) == (True, sent[0].content)


async def test_many_retries_at_once_make_one_job(door: FrontDoor) -> None:
    """While the first runs the others are told when to come back, and then get its answer."""
    path = f"{await tow(door.service)}/command"
    sent = await asyncio.gather(
        *(door.client.post(path, json=REBUILD, headers=with_key("k")) for _ in range(32))
    )
    (job,) = await commands_of(door)
    for answer in sent:
        if answer.status_code == 202:
            assert answer.json()["job_id"] == job.id
        else:
            assert is_problem(answer, 409, "in_flight")
            assert int(answer.headers["retry-after"]) >= 1
    last = await door.client.post(path, json=REBUILD, headers=with_key("k"))
    assert (last.status_code, replayed(last)) == (202, True)


# ---------------------------------------------------------------------- crashes, and the cost


@pytest.mark.parametrize("many", [False, True])
async def test_a_crash_before_the_answer_is_recorded_makes_no_second_job(
    sql_url: str, many: bool
) -> None:
    """A claim that a dead process left ends by itself; the repeat then finds the same jobs."""
    clock = ManualClock()
    async with writes_on(sql_url, clock=clock, **TOKENS) as door:
        path = f"{await tow(door.service, 1)}/command"
        await tow(door.service, 2)
        body = REBUILD | ({"prs": ["octo-org/app#1", "octo-org/app#2"]} if many else {})
        path = "/api/prs/commands" if many else path
        await on_database(sql_url, *_FORBID[door.service.database.dialect])
        first = await door.client.post(path, json=body, headers=with_key("k"))
        assert first.status_code == 202
        held = await door.client.post(path, json=body, headers=with_key("k"))
        assert is_problem(held, 409, "in_flight")
        before = [job.id for job in await commands_of(door)]
        await on_database(sql_url, *_ALLOW[door.service.database.dialect])
    clock.advance(301)
    async with writes_on(sql_url, clock=clock, **TOKENS) as door:
        again = await door.client.post(path, json=body, headers=with_key("k"))
        assert again.json() == first.json()
        assert [job.id for job in await commands_of(door)] == before
        assert len(before) == (2 if many else 1)
        assert replayed(await door.client.post(path, json=body, headers=with_key("k")))


@pytest.mark.parametrize(("tables", "seconds"), [({"lock_ttl_sec": 30}, 30), ({}, 300)])
async def test_how_long_a_dead_process_holds_a_key(
    sql_url: str, tables: dict[str, Any], seconds: float
) -> None:
    """For `idempotency.lock_ttl_sec`, five minutes by default; then the key can be used again."""
    clock = ManualClock()
    given = {**TOKENS, "idempotency": tables}
    async with writes_on(sql_url, clock=clock, **given) as door:
        path = f"{await tow(door.service)}/command"
        await on_database(sql_url, *_FORBID[door.service.database.dialect])
        await door.client.post(path, json=REBUILD, headers=with_key("k"))
        dialect = door.service.database.dialect
    await on_database(sql_url, *_ALLOW[dialect])
    async with writes_on(sql_url, clock=clock, **given) as door:
        for elapsed in (0, seconds / 2):
            clock.advance(elapsed)
            held = await door.client.post(path, json=REBUILD, headers=with_key("k"))
            assert is_problem(held, 409, "in_flight"), elapsed
        clock.advance(seconds)
        again = await door.client.post(path, json=REBUILD, headers=with_key("k"))
        assert (again.status_code, replayed(again)) == (202, False)


_FORBID = {
    "sqlite": [
        (
            "CREATE TRIGGER gone BEFORE UPDATE ON once_records WHEN NEW.status = 'completed' "
            "BEGIN SELECT RAISE(ABORT, 'gone'); END"
        )
    ],
    "postgresql": [
        (
            "CREATE FUNCTION gone() RETURNS trigger AS $$ BEGIN IF NEW.status = 'completed' THEN "
            "RAISE EXCEPTION 'gone'; END IF; RETURN NEW; END $$ LANGUAGE plpgsql"
        ),
        "CREATE TRIGGER gone BEFORE UPDATE ON once_records FOR EACH ROW EXECUTE FUNCTION gone()",
    ],
}
"""As a process leaves it that ends before its answer is recorded: the claim stands, alone."""
_ALLOW = {
    "sqlite": ["DROP TRIGGER gone"],
    "postgresql": ["DROP TRIGGER gone ON once_records"],
}


async def on_database(url: str, *statements: str) -> None:
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            for statement in statements:
                file.execute(statement)
        return
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_a_request_without_a_key_costs_no_statement(local: FrontDoor) -> None:
    """Only a key leads to the ledger: two statements for a command, and none without one."""
    path = f"{await tow(local.service)}/command"
    run: list[str] = []
    database = local.service.database
    original = database.run

    async def counted(statement: Any, rows: Any) -> Any:
        run.append(statement.name)
        return await original(statement, rows)

    database.run = counted  # type: ignore[method-assign]
    await local.client.post(path, json=REBUILD, headers=AS_OPERATOR)
    bare, run[:] = list(run), []
    await local.client.post(path, json=REBUILD, headers=with_key("k"))
    keyed, run[:] = list(run), []
    await local.client.post(path, json=REBUILD, headers=with_key("k"))
    ledger = {"put", "settle", "read", "swap", "size", "keep secret", "read secret"}
    assert not ledger & set(bare), bare
    assert ledger & set(keyed), keyed
    assert set(run) <= ledger
