"""What is counted of deleting."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

PRUNED = Counter("towline_pruned_rows", "Rows deleted because they were past their time", ["what"])
LATE = Gauge(
    "towline_prune_late_seconds", "How long ago the oldest row left should have gone", ["what"]
)
