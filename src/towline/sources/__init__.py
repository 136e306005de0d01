"""Bytes and headers in, a `Delivery` with its key and events out, or a typed rejection.

Pure: no clock, no randomness, no I/O. Any bytes at all give one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from towline.core.horizons import REDELIVERY_SECONDS
from towline.sources import ci, github, gitlab, jenkins, jira, scheduler, slack
from towline.sources.delivery import (
    BadSignature,
    Delivery,
    DeliveryRejected,
    Headers,
    Malformed,
    NoSecret,
    OutsideWindow,
    Receive,
)

__all__ = [
    "SOURCES",
    "BadSignature",
    "Delivery",
    "DeliveryRejected",
    "Headers",
    "Malformed",
    "NoSecret",
    "OutsideWindow",
    "Receive",
    "Source",
]


class Source(NamedTuple):
    """How to read a source's deliveries, and for how long it may send one again."""

    receive: Receive
    redelivery_seconds: int
    headers: frozenset[str]
    """All headers that `receive` reads. Each may be there once."""


_RECEIVERS: Final[Mapping[str, Receive]] = {
    ci.SOURCE: ci.receive,
    github.SOURCE: github.receive,
    gitlab.SOURCE: gitlab.receive,
    jenkins.SOURCE: jenkins.receive,
    jira.SOURCE: jira.receive,
    scheduler.SOURCE: scheduler.receive,
    slack.SOURCE: slack.receive,
}

_SHARED: Final = (
    *("x-hub-signature-256", "x-hub-signature", "x-towline-signature"),
    *("x-towline-token", "authorization"),
)
_HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    ci.SOURCE: (*_SHARED, "idempotency-key", "x-idempotency-key"),
    github.SOURCE: (
        *("x-hub-signature-256", "x-github-delivery", "x-github-event", "x-github-hook-id"),
        *("x-github-hook-installation-target-type", "x-github-hook-installation-target-id"),
    ),
    gitlab.SOURCE: (
        *("x-gitlab-token", "webhook-signature", "webhook-id", "webhook-timestamp"),
        *("idempotency-key", "x-gitlab-event", "x-gitlab-event-uuid", "x-gitlab-webhook-uuid"),
    ),
    jenkins.SOURCE: _SHARED,
    jira.SOURCE: (*_SHARED, "x-atlassian-webhook-identifier"),
    scheduler.SOURCE: (*_SHARED, "x-cloudscheduler-jobname", "x-cloudscheduler-scheduletime"),
    slack.SOURCE: ("x-slack-signature", "x-slack-request-timestamp"),
}

SOURCES: Final[Mapping[str, Source]] = {
    name: Source(
        receive, REDELIVERY_SECONDS.get(name, 0), frozenset(("content-type", *_HEADERS[name]))
    )
    for name, receive in _RECEIVERS.items()
}
"""By the name that also begins the keys of a source, and its route."""
