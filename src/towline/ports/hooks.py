"""A forge's own log of the webhooks it sent, and what came of them hour by hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from towline.core.recovery import Entry, Hook, HourCounts
from towline.errors import Rejected, Unavailable


class ForgeUnavailable(Unavailable):
    """The forge did not answer, failed, or asks to be left alone for `retry_after` seconds."""


class ForgeUnreadable(ForgeUnavailable):
    """The forge's answer is not what its API sends."""


class ForgeRefused(Rejected):
    """What was asked for is not there, or the credentials do not open it."""


class LogPage(NamedTuple):
    entries: Sequence[Entry]
    """Newest first."""
    next: str | None
    """The cursor of the page with older entries."""
    now_us: int
    """The forge's time."""


class Recorded(NamedTuple):
    """A delivery as it was sent; the headers' names are in lower case."""

    guid: str
    headers: Mapping[str, str]
    payload: Mapping[str, Any]


class HookLog(Protocol):
    """Each call ends by its deadline."""

    async def page(self, hook: Hook, cursor: str | None = None) -> LogPage: ...

    async def read(self, hook: Hook, entry_id: int) -> Recorded:
        """`ForgeRefused` if the log no longer has it."""
        ...


class HookHour(NamedTuple):
    """`delivered` by the forge, of which `received` as webhooks and `recovered` from its log."""

    hook: str
    hour_us: int
    delivered: int
    received: int
    recovered: int


class HookHours(Protocol):
    async def record(self, hook: str, counts: Sequence[HourCounts]) -> None:
        """Put these in place of what was recorded for their hours."""
        ...

    async def hours(self, hook: str | None, since_us: int) -> list[HookHour]:
        """Oldest first, of one hook or of all."""
        ...
