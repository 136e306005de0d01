"""Counts the events of pull requests under tow."""

from __future__ import annotations

from prometheus_client import Counter

from towline.pulls.model import PullEvent

EVENTS = Counter("towline_pr_events", "Lines written to the logs of pull requests", ["event_type"])
ANOMALIES = Counter(
    "towline_pr_anomalies", "Events that the lifecycle does not allow", ["event_type"]
)

PARKED = Counter(
    "towline_parked_events",
    "Events that came before their pull request: parked, and applied when it was recorded",
    ["outcome"],
)


def count_parked(outcome: str) -> None:
    PARKED.labels(outcome).inc()


def count_event(event: PullEvent) -> None:
    EVENTS.labels(event.event_type).inc()
    if "anomaly" in event.payload:
        ANOMALIES.labels(event.event_type).inc()
