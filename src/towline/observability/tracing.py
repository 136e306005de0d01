"""Traces from delivery to effect, by OpenTelemetry; nothing at all unless they are switched on.

A job carries the traceparent of the request that made it, so that work hours later, in another
process, is part of the same trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from towline_once.errors import MissingExtra

_tracer: Any = None


def configure(endpoint: str | None, service: str = "towline") -> None:
    """Send spans to an OTLP collector; without an address, to the exporter's usual one."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        raise MissingExtra("traces need an extra: pip install 'towline[traces]'") from missing
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    use(provider)


def use(provider: Any) -> None:
    """Make spans with this provider; None switches them off."""
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("towline")


def off() -> bool:
    return _tracer is None


@contextmanager
def span(name: str, parent: str | None = None, **attributes: Any) -> Iterator[str | None]:
    """A span around the body, which is given its traceparent for those who come after."""
    if _tracer is None:
        yield None
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator = TraceContextTextMapPropagator()
    context = propagator.extract({"traceparent": parent}) if parent else None
    known = {f"towline.{key}": value for key, value in attributes.items() if value is not None}
    with _tracer.start_as_current_span(name, context=context, attributes=known):
        carrier: dict[str, str] = {}
        propagator.inject(carrier)
        yield carrier.get("traceparent")
