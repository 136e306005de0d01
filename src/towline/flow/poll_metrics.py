"""What is counted of sources that are read from time to time."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

POLLED = Counter("towline_polled", "Things that a source showed when it was read", ["poll"])
TAKEN_IN = Counter("towline_poll_taken_in", "Deliveries that reading a source brought in", ["poll"])
TROUBLES = Counter("towline_poll_troubles", "Readings of a source that failed", ["poll"])
LAG = Gauge("towline_poll_lag_seconds", "How long ago a source was read to its end", ["poll"])
MET = Counter(
    "towline_poll_met", "Events that another delivery had told of before", ["source", "kind"]
)
