"""Bytes and headers in, a `Delivery` with its key and events out, or a typed rejection.

Pure: no clock, no randomness, no I/O. Any bytes at all give one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from towline.events import Event
from towline.forges.delivery import (
    BadSignature,
    Delivery,
    DeliveryRejected,
    Headers,
    Malformed,
    NoSecret,
    OutsideWindow,
    Receive,
)
from towline.forges.github import webhooks as github
from towline.forges.gitlab import webhooks as gitlab
from towline.forges.payload import Object
from towline.integrations import generic_ci, scheduler, slack
from towline.integrations.jenkins import webhooks as jenkins
from towline.integrations.jira import webhooks as jira
from towline_once import keys
from towline_once.keys import REDELIVERY_SECONDS

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
    generic_ci.SOURCE: generic_ci.receive,
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
    generic_ci.SOURCE: (*_SHARED, "idempotency-key", "x-idempotency-key"),
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


# ------------------------------------------------------------------ deliveries read again
# The events of a delivery that was stored: read again from its payload, by its source.

Read: TypeAlias = Callable[[str, str, Object], tuple[Event, ...]]


def events_of(source: str, key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    """The same events that were read when the delivery came in; none of an unknown source."""
    reader = _READERS.get(source)
    return reader(key, event_name, payload) if reader else ()


def _ci(key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    parsed = keys.parse(key)
    return generic_ci.read(parsed.provider, payload) if isinstance(parsed, keys.Ci) else ()


def _slack(key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    return (slack.read_command if event_name == slack.SLASH_COMMAND else slack.read)(payload)


def _scheduler(key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    return scheduler.read(key)


_READERS: Final[Mapping[str, Read]] = {
    generic_ci.SOURCE: _ci,
    github.SOURCE: lambda _, event_name, payload: github.read(event_name, payload),
    gitlab.SOURCE: lambda _, __, payload: gitlab.read(payload),
    jenkins.SOURCE: lambda _, __, payload: jenkins.read(payload),
    jira.SOURCE: lambda _, __, payload: jira.read(payload),
    scheduler.SOURCE: _scheduler,
    slack.SOURCE: _slack,
}
