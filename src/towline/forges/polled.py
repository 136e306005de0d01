"""The times and numbers of what is polled: what has none of them cannot be kept track of."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from towline.core.http_dates import seconds_of
from towline.core.watermarks import GRAIN_US
from towline.ports.forge import ForgeUnreadable
from towline.sources import reading
from towline.sources.reading import Object

HOOK: Final = "poll"
"""Stands for the hook in the keys of what was found."""


def date_of(headers: Mapping[str, str], server: str) -> int:
    """The server's time, of whole seconds."""
    told = seconds_of(headers.get("date"))
    if told is None:
        raise ForgeUnreadable(f"{server}'s answer has no Date to go by")
    return int(told) * GRAIN_US


def stamp_of(item: Object, name: str, server: str) -> int:
    at = reading.moment(item, name)
    if at is None:
        raise ForgeUnreadable(f"something in {server}'s list has no {name}")
    return round(at * 1e6)


def required_number(item: Object, name: str) -> int:
    number = reading.number(item, name)
    if number is None:
        raise ForgeUnreadable(f"something in the forge's list has no {name}")
    return number


def moment_text(at_us: int) -> str:
    at = datetime.fromtimestamp(max(at_us, 0) // GRAIN_US, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
