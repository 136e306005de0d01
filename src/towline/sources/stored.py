"""The events of a delivery that was stored: read again from its payload, by its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from towline.core import keys
from towline.core.events import Event
from towline.sources import ci, github, gitlab, jenkins, jira, scheduler, slack
from towline.sources.reading import Object

Read: TypeAlias = Callable[[str, str, Object], tuple[Event, ...]]


def events_of(source: str, key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    """The same events that were read when the delivery came in; none of an unknown source."""
    reader = _READERS.get(source)
    return reader(key, event_name, payload) if reader else ()


def _ci(key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    parsed = keys.parse(key)
    return ci.read(parsed.provider, payload) if isinstance(parsed, keys.Ci) else ()


def _slack(key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    return (slack.read_command if event_name == slack.SLASH_COMMAND else slack.read)(payload)


def _scheduler(key: str, event_name: str, payload: Object) -> tuple[Event, ...]:
    return scheduler.read(key)


_READERS: Final[Mapping[str, Read]] = {
    ci.SOURCE: _ci,
    github.SOURCE: lambda _, event_name, payload: github.read(event_name, payload),
    gitlab.SOURCE: lambda _, __, payload: gitlab.read(payload),
    jenkins.SOURCE: lambda _, __, payload: jenkins.read(payload),
    jira.SOURCE: lambda _, __, payload: jira.read(payload),
    scheduler.SOURCE: _scheduler,
    slack.SOURCE: _slack,
}
