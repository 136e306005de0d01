"""Counters that move when they should, and nothing secret in what Towline says about itself."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

from tests.clocks import ManualClock
from towline import Definitive, Idempotency, KeyCollision, LeaseLost, Locks, LockTimeout, keys
from towline.observability.logs import JsonLines
from towline_once.metrics import audit_to_log

LISTED = [
    "checks", "new", "duplicates_skipped", "conflicts", "lock_recoveries", "completed", "failed",
    "ttl_cleanups",
]  # fmt: skip
"""What section A4.s5 of the specification lists."""

KEY = keys.Slack(team_id="T1", trigger_id="42.7")
SOURCE = "slack"

SECRET_KEY = "sk-live-51HxQ2eZvKYlo2C9fQ7a6mUuVtbY3wPq"
SECRET_PAYLOAD = "4242-4242-4242-4242"
SECRET_RESPONSE = "eyJhbGciOiJIUzI1NiJ9.cmVzcG9uc2U"


def total(name: str, source: str = SOURCE) -> float:
    sample = f"towline_idempotency_{name}_total"
    return REGISTRY.get_sample_value(sample, {"source": source}) or 0.0


def sample(name: str) -> float:
    return REGISTRY.get_sample_value(name) or 0.0


async def done() -> str:
    return "done"


async def checked(idem: Idempotency, clock: ManualClock) -> None:
    await idem.check_and_set(KEY, "acme", 1)


async def duplicated(idem: Idempotency, clock: ManualClock) -> None:
    await idem.process(KEY, "acme", 1, done)
    await idem.process(KEY, "acme", 1, done)


async def conflicted(idem: Idempotency, clock: ManualClock) -> None:
    await checked(idem, clock)
    await checked(idem, clock)


async def collided(idem: Idempotency, clock: ManualClock) -> None:
    await idem.check_and_set(KEY, "acme", 1)
    await idem.check_and_set(KEY, "acme", 2)


async def recovered(idem: Idempotency, clock: ManualClock) -> None:
    await checked(idem, clock)
    clock.advance(301)
    await checked(idem, clock)


async def recovered_by_a_waiter(idem: Idempotency, clock: ManualClock) -> None:
    await checked(idem, clock)
    clock.advance(299.95)
    await idem.process(KEY, "acme", 1, done, wait=10)


async def failed(idem: Idempotency, clock: ManualClock) -> None:
    await idem.fail(await idem.check_and_set(KEY, "acme", 1), "no")


async def late(idem: Idempotency, clock: ManualClock) -> None:
    old = await idem.check_and_set(KEY, "acme", 1)
    clock.advance(301)
    await checked(idem, clock)
    await idem.complete(old, "late")


async def cleaned(idem: Idempotency, clock: ManualClock) -> None:
    await idem.process(KEY, "acme", 1, done)
    clock.advance(86_401)
    await idem.cleanup_expired()


async def evicted(idem: Idempotency, clock: ManualClock) -> None:
    await idem.process(KEY, "acme", 1, done)
    await idem.process(keys.Slack(team_id="T1", trigger_id="43"), "acme", 1, done)


MOVED: list[tuple[str, Callable[[Idempotency, ManualClock], Awaitable[None]], str]] = [
    ("checks", checked, SOURCE),
    ("new", checked, SOURCE),
    ("duplicates_skipped", duplicated, SOURCE),
    ("conflicts", conflicted, SOURCE),
    ("collisions", collided, SOURCE),
    ("lock_recoveries", recovered, SOURCE),
    ("lock_recoveries", recovered_by_a_waiter, SOURCE),
    ("completed", duplicated, SOURCE),
    ("failed", failed, SOURCE),
    ("stale", late, SOURCE),
    ("ttl_cleanups", cleaned, "all"),
    ("evictions", evicted, "all"),
]


@pytest.mark.parametrize(
    ("name", "scenario", "source"), MOVED, ids=[f"{n}-{s.__name__}" for n, s, _ in MOVED]
)
async def test_counters_move(name: str, scenario: Any, source: str) -> None:
    """Each by one, for its source and no other, in Prometheus and in `stats()` alike."""
    clock = ManualClock()
    others = ["github", "jira", "all", SOURCE]
    others.remove(source)
    max_items = 1 if scenario is evicted else 100
    async with Idempotency.open("memory://", clock=clock, max_items=max_items) as idem:
        before, foreign = total(name, source), [total(name, other) for other in others]
        await scenario(idem, clock)
        stats = await idem.stats()
        assert total(name, source) == before + stats[name]
        assert stats[name] == stats[f"{name}.{source}"]
        assert stats[name] == (2 if (name, scenario) == ("checks", duplicated) else 1)
        assert [total(name, other) for other in others] == foreign


def test_every_listed_counter_is_exported() -> None:
    """Scraping shows each of them by name, with a source."""
    for name in LISTED:
        total(name)
    exported = generate_latest(REGISTRY).decode()
    for name in LISTED:
        assert f"# TYPE towline_idempotency_{name}_total counter" in exported


async def test_every_source_is_counted_by_its_name() -> None:
    """The label is the source that a key names."""
    samples = [
        keys.GitHub(delivery_id="d"), keys.Api(client_id="c", request_id="r"), KEY,
        keys.Scheduler(schedule_id="s", execution_time="2024-12-19T00:00:00Z"),
        keys.GitLab(delivery_id="w"), keys.Jira(webhook_id="j"), keys.Ci("x", "y"),
    ]  # fmt: skip
    async with Idempotency.open("memory://") as idem:
        for key in samples:
            before = total("new", key.source)
            await idem.check_and_set(key, "acme", 1)
            assert total("new", key.source) == before + 1
        stats = await idem.stats()
    assert (stats["new"], stats["checks"], stats["store_size"]) == (7, 7, 7)
    assert sample("towline_idempotency_store_size") == 7


async def test_lost_leases_and_lock_timeouts_are_counted() -> None:
    """Both are what an operator looks for first."""
    clock = ManualClock()
    lost, timeouts = sample("towline_leases_lost_total"), sample("towline_lock_timeouts_total")
    async with Locks.open("memory://", clock=clock) as locks:

        async def hold_for_too_long() -> None:
            async with locks.acquire("repo") as lease:
                with pytest.raises(LockTimeout):
                    async with locks.acquire("repo", wait_seconds=0):
                        pass
                clock.advance(301)
                lease.check()

        with pytest.raises(LeaseLost):
            await hold_for_too_long()
    assert sample("towline_leases_lost_total") == lost + 1
    assert sample("towline_lock_timeouts_total") == timeouts + 1


# ---------------------------------------------------------------------- secrets


async def live_through_everything(idem: Idempotency, clock: ManualClock, key: keys.Key) -> None:
    """Every event a key can have: hit, collision, crash, failure, redelivery, replay."""
    payload = {"card": SECRET_PAYLOAD}

    async def respond() -> dict[str, str]:
        return {"token": SECRET_RESPONSE}

    async def break_down() -> None:
        raise RuntimeError("broken")

    dead = await idem.check_and_set(key, "acme", payload)
    await idem.check_and_set(key, "acme", payload)
    clock.advance(301)
    with pytest.raises(RuntimeError):
        await idem.process(key, "acme", payload, break_down)
    assert not await idem.complete(dead, {"token": SECRET_RESPONSE})
    await idem.redeliver(key, "acme", by="operator")
    await idem.process(key, "acme", payload, respond)
    await idem.process(key, "acme", payload, respond)
    with pytest.raises(KeyCollision) as collision:
        await idem.process(key, "acme", {"card": "another"}, respond)
    assert SECRET_KEY not in str(collision.value)
    definitive = keys.Api(client_id="cli", request_id=f"{SECRET_KEY}-2")

    async def decline() -> None:
        raise Definitive("declined")

    with pytest.raises(Definitive):
        await idem.process(definitive, "acme", payload, decline)
    await asyncio.sleep(0)


async def test_logs_and_audit_show_prefixes_only(
    backend_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the whole key nor payload nor response appears anywhere, at any level."""
    clock = ManualClock()
    key = keys.Api(client_id="cli", request_id=SECRET_KEY)
    with caplog.at_level(logging.DEBUG):
        async with Idempotency.open(backend_url, clock=clock) as idem:
            await live_through_everything(idem, clock, key)
    said = caplog.text + generate_latest(REGISTRY).decode()
    for secret in (SECRET_KEY, SECRET_PAYLOAD, SECRET_RESPONSE, SECRET_KEY[12:]):
        assert secret not in said
    assert "IDEMPOTENCY_HIT" in caplog.text
    assert "IDEMPOTENCY_KEY_COLLISION" in caplog.text
    assert keys.prefix(str(key)) in caplog.text


async def test_audit_events_say_what_happened(backend_url: str) -> None:
    """A hit names its status, a collision where the payloads differ, a redelivery who asked."""
    heard: list[tuple[str, dict[str, Any]]] = []

    def sink(event: str, /, **fields: Any) -> None:
        heard.append((event, fields))

    clock = ManualClock()
    key = keys.Api(client_id="cli", request_id=SECRET_KEY)
    async with Idempotency.open(backend_url, clock=clock, audit=sink) as idem:
        await live_through_everything(idem, clock, key)
    events = [event for event, _ in heard]
    assert events == [
        "IDEMPOTENCY_HIT", "REDELIVERED", "IDEMPOTENCY_HIT", "IDEMPOTENCY_KEY_COLLISION",
    ]  # fmt: skip
    assert [fields.get("status") for _, fields in heard] == ["processing", None, "completed", None]
    assert heard[1][1]["by"] == "operator"
    assert list(heard[3][1]["pointers"]) == ["/card"]
    assert {fields["key_prefix"] for _, fields in heard} == {keys.prefix(str(key))}
    assert {fields["tenant"] for _, fields in heard} == {"acme"}


@pytest.mark.parametrize(
    "odd", [None, "lone \ud800", 2**80, object()], ids=["none", "surrogate", "integer", "object"]
)
def test_an_audit_event_in_the_json_log_is_one_object(odd: object) -> None:
    """Its fields stand beside those of the line; a plain log has them as JSON text."""
    written, plain = io.StringIO(), io.StringIO()
    handlers = [logging.StreamHandler(written), logging.StreamHandler(plain)]
    handlers[0].setFormatter(JsonLines())
    logger = logging.getLogger("towline.audit")
    before = logger.level
    logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        audit_to_log("REDELIVERED", key_prefix="github:550e", level=3, odd=odd)
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
    line = json.loads(written.getvalue())
    assert (line["event"], line["key_prefix"]) == ("REDELIVERED", "github:550e")
    assert (line["level"], line["logger"]) == ("info", "towline.audit")
    assert json.loads(plain.getvalue())["key_prefix"] == "github:550e"
