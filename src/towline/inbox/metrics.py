"""Counts deliveries, and what pollers found."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

DELIVERIES = Counter(
    "towline_deliveries", "Deliveries by what became of them", ["source", "status"]
)
DEDUPED = Counter("towline_webhook_deduped", "Deliveries that had been taken in before", ["source"])
THROTTLED = Counter(
    "towline_pipeline_throttled",
    "Deliveries whose fix run, or beyond the flood limit whose job, waits for its turn",
    ["source"],
)

_cells: dict[tuple[str, str], list[Counter]] = {}


def count_delivery(source: str, status: str) -> None:
    cells = _cells.get((source, status))
    if cells is None:
        cells = _cells[source, status] = [DELIVERIES.labels(source, status)]
        if status == "duplicate_ignored":
            cells.append(DEDUPED.labels(source))
        elif status == "throttled_delayed":
            cells.append(THROTTLED.labels(source))
    for cell in cells:
        cell.inc()


# ------------------------------------------------------------------ metrics of polling
# What is counted of sources that are read from time to time.

POLLED = Counter("towline_polled", "Things that a source showed when it was read", ["poll"])
TAKEN_IN = Counter("towline_poll_taken_in", "Deliveries that reading a source brought in", ["poll"])
TROUBLES = Counter("towline_poll_troubles", "Readings of a source that failed", ["poll"])
LAG = Gauge("towline_poll_lag_seconds", "How long ago a source was read to its end", ["poll"])
MET = Counter(
    "towline_poll_met", "Events that another delivery had reported before", ["source", "kind"]
)
