"""Idempotency keys: one scheme per event source, and their text.

A key is written as its source and its parts, joined by colons. `parse` reads back an equal key,
and no two keys share a text, because of three rules:

* every part but the last has its `%` and `:` written as `%25` and `%3A`;
* the last part is verbatim, as nothing follows it that it could be confused with;
* the delivery id of a hook that is not named is escaped as well: `github:a:b` is always
  delivery `b` of hook `a`, and delivery `a:b` of an unnamed hook is `github:a%3Ab`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final, Self

from towline_once.errors import Rejected

LOGGED_CHARACTERS: Final = 8

_BAD_ESCAPE: Final = re.compile("%(?!25|3A)")
_set_frozen: Final = object.__setattr__


class Key(ABC):
    """What all schemes have in common: a source, parts, a text, and the way back from it.

    Constructors take a part that was left out for an empty one, so that both are `Rejected`.
    """

    __slots__ = ()

    source: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    @abstractmethod
    def __str__(self) -> str: ...

    @classmethod
    def from_rest(cls, rest: str) -> Self:
        """Read what follows `source:` in a key's text."""
        *escaped, last = rest.split(":", len(cls.parts) - 1)
        if len(escaped) + 1 < len(cls.parts):
            raise Rejected(f"{cls.__name__} key text must be {cls.shape()}, all parts present")
        make: Callable[..., Self] = cls
        return make(*(_unescaped(cls, text) for text in escaped), last)

    @classmethod
    def shape(cls) -> str:
        """The text of a key with its parts' names in place of their values."""
        return ":".join([cls.source, *(f"{{{part}}}" for part in cls.parts)])


@dataclass(frozen=True, slots=True, init=False)
class HookDelivery(Key):
    """A delivery id which is unique only per hook: name the hook where it is known."""

    parts = ("hook_id", "delivery_id")

    delivery_id: str
    hook_id: str | None

    def __init__(self, delivery_id: str = "", hook_id: str | int | None = None) -> None:
        _put(self, "delivery_id", delivery_id)
        if hook_id is None:
            _set_frozen(self, "hook_id", None)
        else:
            _put_number(self, "hook_id", hook_id)

    def __str__(self) -> str:
        if self.hook_id is None:
            return f"{self.source}:{_escaped(self.delivery_id)}"
        return f"{self.source}:{_escaped(self.hook_id)}:{self.delivery_id}"

    @classmethod
    def from_rest(cls, rest: str) -> Self:
        first, colon, delivery_id = rest.partition(":")
        if colon:
            return cls(delivery_id, hook_id=_unescaped(cls, first))
        return cls(_unescaped(cls, first))


@dataclass(frozen=True, slots=True, init=False)
class GitHub(HookDelivery):
    """`X-GitHub-Delivery`, and `X-GitHub-Hook-ID`: one GUID may come from several hooks."""

    source = "github"


@dataclass(frozen=True, slots=True, init=False)
class GitLab(HookDelivery):
    """The `Idempotency-Key` header, and `X-Gitlab-Webhook-UUID`."""

    source = "gitlab"


@dataclass(frozen=True, slots=True, init=False)
class Api(Key):
    """A request id chosen by a client of our own API."""

    source = "api"
    parts = ("client_id", "request_id")

    client_id: str
    request_id: str

    def __init__(self, client_id: str = "", request_id: str = "") -> None:
        _put(self, "client_id", client_id)
        _put(self, "request_id", request_id)

    def __str__(self) -> str:
        return f"api:{_escaped(self.client_id)}:{self.request_id}"


@dataclass(frozen=True, slots=True, init=False)
class Slack(Key):
    """A slash command's `trigger_id`, or an event's `event_id`, within a workspace."""

    source = "slack"
    parts = ("team_id", "trigger_id")

    team_id: str
    trigger_id: str

    def __init__(self, team_id: str = "", trigger_id: str = "") -> None:
        _put(self, "team_id", team_id)
        _put(self, "trigger_id", trigger_id)

    def __str__(self) -> str:
        return f"slack:{_escaped(self.team_id)}:{self.trigger_id}"


@dataclass(frozen=True, slots=True, init=False)
class Scheduler(Key):
    """The time at which a schedule was due, as text or as an aware datetime."""

    source = "scheduler"
    parts = ("schedule_id", "execution_time")

    schedule_id: str
    execution_time: str

    def __init__(self, schedule_id: str = "", execution_time: str | datetime = "") -> None:
        _put(self, "schedule_id", schedule_id)
        if isinstance(execution_time, datetime):
            execution_time = _utc_text(execution_time)
        _put(self, "execution_time", execution_time)

    def __str__(self) -> str:
        return f"scheduler:{_escaped(self.schedule_id)}:{self.execution_time}"


@dataclass(frozen=True, slots=True, init=False)
class Jira(Key):
    """`X-Atlassian-Webhook-Identifier`: one per event, the same for each of its retries."""

    source = "jira"
    parts = ("webhook_id",)

    webhook_id: str

    def __init__(self, webhook_id: str = "") -> None:
        _put(self, "webhook_id", webhook_id)

    def __str__(self) -> str:
        return f"jira:{self.webhook_id}"


@dataclass(frozen=True, slots=True, init=False)
class Jenkins(Key):
    """A phase of a build: Jenkins sends no delivery id, but enters each phase only once."""

    source = "jenkins"
    parts = ("job", "build", "phase")

    job: str
    build: str
    phase: str

    def __init__(self, job: str = "", build: str | int = "", phase: str = "") -> None:
        _put(self, "job", job)
        _put_number(self, "build", build)
        _put(self, "phase", phase)

    def __str__(self) -> str:
        return f"jenkins:{_escaped(self.job)}:{_escaped(self.build)}:{self.phase}"


@dataclass(frozen=True, slots=True, init=False)
class Ci(Key):
    """A delivery of any other CI system, named by its provider."""

    source = "ci"
    parts = ("provider", "delivery_id")

    provider: str
    delivery_id: str

    def __init__(self, provider: str = "", delivery_id: str = "") -> None:
        _put(self, "provider", provider)
        _put(self, "delivery_id", delivery_id)

    def __str__(self) -> str:
        return f"ci:{_escaped(self.provider)}:{self.delivery_id}"


SCHEMES: Final[Mapping[str, type[Key]]] = {
    scheme.source: scheme for scheme in (Api, Ci, GitHub, GitLab, Jenkins, Jira, Scheduler, Slack)
}


def parse(text: str) -> Key:
    """Return the key whose `str` is exactly `text`.

    Raises: `Rejected` for any other text.

    Guarantees: `parse(str(key)) == key` for every key.

    ```python
    key = towline_once.keys.GitHub(delivery_id="550e8400", hook_id="9")
    assert str(key) == "github:9:550e8400"
    assert towline_once.keys.parse("github:9:550e8400") == key
    ```
    """
    if not isinstance(text, str):
        raise Rejected(f"a key's text must be str, not {type(text).__name__}")
    source, colon, rest = text.partition(":")
    scheme = SCHEMES.get(source)
    if scheme is None or not colon:
        raise Rejected(f"a key's text must start with one of {', '.join(SCHEMES)}, and a colon")
    return scheme.from_rest(rest)


def prefix(text: str) -> str:
    """What may be logged of a key: its source and the first characters of the rest."""
    source, colon, rest = text.partition(":")
    head, rest = (f"{source}:", rest) if colon and source in SCHEMES else ("", text)
    shown = rest[:LOGGED_CHARACTERS]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else "?" for char in shown)
    return f"{head}{shown}{'…' if len(rest) > LOGGED_CHARACTERS else ''}"


def _put(key: Key, part: str, value: object) -> None:
    if type(value) is not str or not value or not value.isascii():
        value = _sound_text(key, part, value)
    _set_frozen(key, part, value)


def _put_number(key: Key, part: str, value: object) -> None:
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            value = int.__repr__(value)
        except ValueError:
            raise Rejected(f"{type(key).__name__} key: {part} has too many digits") from None
    _put(key, part, value)


def _sound_text(key: Key, part: str, value: object) -> str:
    """The plain `str` of a part which may be non-ASCII or of a subclass such as StrEnum."""
    kind = type(key).__name__
    if not isinstance(value, str):
        given = "missing" if value is None else type(value).__name__
        raise Rejected(f"{kind} key: {part} must be non-empty text, but is {given}")
    if not value:
        raise Rejected(f"{kind} key: {part} must be non-empty text, but is empty or missing")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Rejected(f"{kind} key: {part} must be valid Unicode, without surrogates") from None
    return str.__str__(value)


def _utc_text(moment: datetime) -> str:
    if moment.utcoffset() is None:
        raise Rejected("Scheduler key: execution_time must be text or a datetime with a time zone")
    try:
        return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise Rejected("Scheduler key: execution_time must lie in the years 1 to 9999") from None


def _escaped(part: str) -> str:
    if "%" in part or ":" in part:
        return part.replace("%", "%25").replace(":", "%3A")
    return part


def _unescaped(scheme: type[Key], text: str) -> str:
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        raise Rejected(f"{scheme.__name__} key text may hold % only as %25 or %3A in escaped parts")
    return text.replace("%3A", ":").replace("%25", "%")


# ------------------------------------------------------------------ how long senders redeliver
# How long a sender may deliver the same thing again.
#
# A record that ends earlier lets the late delivery act a second time.

REDELIVERY_SECONDS = {
    "github": 3 * 86_400,
    "gitlab": 76 * 3_600,
    "slack": 300,
}
"""GitHub keeps its delivery log for 3 days (Enterprise Server for 7: set the TTL to that)."""


def check_horizons(sources: Collection[str], seconds: float, name: str = "completed_ttl") -> None:
    """Refuse a time to live that ends before a sender's last redelivery.

    Parameters:
        sources: names of senders, such as `github`.
        seconds: the time to live.
        name: what the message calls it.

    Raises: `Rejected` for a time that is too short, and for a sender that is not known.

    ```python
    towline_once.keys.check_horizons(["github"], 3 * 86_400)
    ```
    """
    for source in sources:
        if source not in SCHEMES:
            raise Rejected(f"unknown source {source!r}; known are {', '.join(sorted(SCHEMES))}")
        horizon = REDELIVERY_SECONDS.get(source, 0)
        if seconds < horizon:
            raise Rejected(
                f"{name} of {seconds:g} s is too short for {source}, which may "
                f"redeliver for {horizon} s: a late delivery would act twice"
            )
