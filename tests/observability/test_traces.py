"""Traces: one from the delivery to what its job does, also when they are far apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.clocks import ManualClock
from towline.app.service import Service
from towline.config import Settings
from towline.observability import tracing


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What was exported, by a provider in place of a collector."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)


async def deliver_and_work(sql_url: str, clock: ManualClock) -> None:
    service = Service(Settings(database_url=sql_url), clock=clock)
    await service.open()
    headers = {"x-github-delivery": "d1", "x-github-event": "ping"}
    receipt = await service.ingest.take_in("github", headers, b"{}", verified=True)
    clock.advance(3600)
    rules = service.crew.rules
    job = await service.jobs.claim_one(receipt.job_id or "", rules.owner, rules.lease_us, 1)
    assert job is not None
    assert await service.crew.run(job, clock.monotonic())
    await service.close()


async def test_the_job_belongs_to_the_trace_of_its_delivery(
    sql_url: str, spans: InMemorySpanExporter, clock: ManualClock
) -> None:
    """An hour later, through the store: the same trace, with the delivery as parent."""
    await deliver_and_work(sql_url, clock)
    delivery, job = spans.get_finished_spans()
    assert (delivery.name, job.name) == ("delivery", "job delivery")
    assert job.parent is not None
    assert job.parent.span_id == delivery.context.span_id
    assert job.context.trace_id == delivery.context.trace_id
    assert (delivery.attributes or {})["towline.delivery_id"] == "d1"


async def test_nothing_is_traced_unless_asked(sqlite_url: str, clock: ManualClock) -> None:
    """Without a provider there is no trace to carry."""
    with tracing.span("quiet") as trace:
        assert trace is None
    await deliver_and_work(sqlite_url, clock)
