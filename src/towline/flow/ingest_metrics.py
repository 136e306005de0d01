"""What is counted at the front door."""

from __future__ import annotations

from prometheus_client import Counter

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
