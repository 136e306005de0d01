"""The time that a server puts on its answers."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime


def seconds_of(date: str | None) -> float | None:
    """Seconds since 1970 of a `Date` header; None if it is missing, or no date that there is."""
    try:
        told = parsedate_to_datetime(date or "")
        return told.replace(tzinfo=told.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
