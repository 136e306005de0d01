"""What Towline says about itself: counters, log lines and audit events.

Counters go to Prometheus and, per handle, to `stats()`. Audit events go through one sink, which
by default writes a line of JSON to the logger `towline.audit`; its records carry the event and its
fields as `audit_event` and `audit_fields`, too. Of a key only its prefix leaves.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Protocol

import orjson
from prometheus_client import Counter, Gauge

_audit_log = logging.getLogger("towline.audit")


class Audit(Protocol):
    def __call__(self, event: str, /, **fields: Any) -> None: ...


def audit_to_log(event: str, /, **fields: Any) -> None:
    """The default sink."""
    if _audit_log.isEnabledFor(logging.INFO):
        carried = {"audit_event": event, "audit_fields": fields}
        _audit_log.info(_JsonText({"event": event, **fields}), extra=carried)


class _JsonText:
    """Written out only where a log line shows it."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def __str__(self) -> str:
        try:
            return orjson.dumps(self._value, default=str).decode()
        except TypeError:  # a lone surrogate, an integer of more than 64 bits
            return json.dumps(self._value, default=str)


_COUNTED = {
    "checks": "Claims that were asked for",
    "new": "Claims that were granted",
    "duplicates_skipped": "Claims answered from a finished record",
    "conflicts": "Claims that met another holder at work",
    "collisions": "Claims whose key was used before with another payload",
    "lock_recoveries": "Claims that took over from a holder that died",
    "completed": "Records completed",
    "failed": "Records failed",
    "stale": "Results refused because the claim had been taken over",
    "unrecorded": "Results returned although their record could not be written",
    "ttl_cleanups": "Expired records deleted",
    "evictions": "Finished records deleted to make room",
}

_COUNTERS = {
    name: Counter(f"towline_idempotency_{name}", text, ["source"])
    for name, text in _COUNTED.items()
}

STORE_SIZE = Gauge("towline_idempotency_store_size", "Records in the store")
STORE_LOSS = Counter("towline_store_loss", "Times a store was found to have lost data", ["store"])
LEASES_LOST = Counter("towline_leases_lost", "Leases that ended before their holder was done")
LOCK_TIMEOUTS = Counter("towline_lock_timeouts", "Waits for a lock that ended without it")
EVICTED_ENTRIES = Counter(
    "towline_memory_evictions", "Idle in-process entries dropped to bound memory", ["kind"]
)
BREAKER_TRIPS = Counter("towline_breaker_trips", "Times a breaker opened", ["name"])


class IdempotencyMeter:
    """Counts per source, for one handle and for Prometheus."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], _Cell] = {}

    def count(self, name: str, source: str, amount: int = 1) -> None:
        cell = self._cells.get((name, source))
        if cell is None:
            cell = self._cells[name, source] = _Cell(_COUNTERS[name].labels(source))
        cell.value += amount
        cell.counter.inc(amount)

    def snapshot(self) -> dict[str, int]:
        """In all, by name, and per source as `name.source`."""
        totals = dict.fromkeys(_COUNTED, 0)
        for (name, _), cell in self._cells.items():
            totals[name] += cell.value
        parts = {f"{name}.{source}": cell.value for (name, source), cell in self._cells.items()}
        return totals | parts


class _Cell:
    __slots__ = ("counter", "value")

    def __init__(self, counter: Counter) -> None:
        self.value = 0
        self.counter = counter
