"""The service as a whole: what it refuses at the start, and how its parts hold together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.http.asgi_client import serving
from towline.app.service import Service
from towline.app.web import apps_of
from towline.config import Settings
from towline.submit.rules import Submission
from towline_once.errors import Rejected

DEADLINE = 20.0


def settings(**given: Any) -> Settings:
    return Settings.model_validate(given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"github": {"webhook_secrets": ["a secret"]}, "ingest": {"keep_seconds": 3600}}, "github"),
        ({"gitlab": {"allow_unsigned": True}, "ingest": {"keep_seconds": 259_200}}, "gitlab"),
        ({"worker": {"keep_done_seconds": 3600}}, "worker.keep_done_seconds"),
        ({"state_backend": "redis"}, "redis_url"),
        ({"engine": "celery"}, "redis_url"),
        ({"redis_url": "redis://a", "redis_host": "b"}, "redis_url.*redis_host.*not both"),
        ({"azure_client_id": "c"}, "azure_client_id.*needs redis_host"),
        ({"engine": "celery", "redis_host": "b"}, "celery does not work with redis_host"),
        ({"schedules": {"nightly": {"cron": "99 * * * *"}}}, "nightly"),
        ({"github": {"hooks": ["acme/app:7"]}}, "github.token"),
        ({"github": {"hooks": ["nonsense"], "token": "t"}}, "OWNER/NAME:HOOK_ID"),
        ({"github": {"app_id": "7"}}, "app_key_file"),
    ],
)
def test_what_would_hurt_later_is_refused_at_once(given: dict[str, Any], complaint: str) -> None:
    """In one line that names the setting."""
    with pytest.raises(Rejected, match=complaint):
        Service(settings(database_url="sqlite:///:memory:", **given))


def test_a_source_that_is_not_heard_needs_no_long_memory() -> None:
    """Without GitHub's secret nothing of GitHub comes in, so any time will do."""
    Service(settings(database_url="sqlite:///:memory:", ingest={"keep_seconds": 60}))


async def test_from_delivery_to_done(sql_url: str) -> None:
    """A running service takes a delivery in, works on it, and stops with nothing left over."""
    service = Service(settings(database_url=sql_url))
    await service.open()
    service.start()
    headers = {"x-github-delivery": "d1", "x-github-event": "ping"}
    receipt = await service.ingest.take_in("github", headers, b'{"hook_id": 7}', verified=True)
    async with asyncio.timeout(DEADLINE):
        while True:
            record = await service.jobs.read(receipt.job_id or "")
            if record is not None and record.state == "done":
                break
            await asyncio.sleep(0.01)
    assert await service.ready() == {"database": "ok"}
    await service.close()
    assert service.failures() == []
    assert record.result == '{"events":[{"delivery_id":"d1","kind":"pinged"}]}'


async def test_the_size_of_the_store_is_true_when_it_is_read(sql_url: str) -> None:
    """Also of requests that another process has stored a moment before."""
    here, there = Service(settings(database_url=sql_url)), Service(settings(database_url=sql_url))
    await here.open()
    await there.open()
    try:
        async with serving(apps_of(here)[1]) as scraper:
            for stored in range(3):
                shown = (await scraper.get("/metrics")).text
                assert f"\ntowline_idempotency_store_size {stored:.1f}\n" in shown
                submission = Submission("fix", "{}", "0" * 64, f"key-{stored}", None)
                await there.submit.submit("client", submission)
    finally:
        await here.close()
        await there.close()
