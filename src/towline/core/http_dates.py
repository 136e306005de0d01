"""The times in a server's headers: `Date` and `Retry-After`."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]{1,400}(?:\.[0-9]{1,400})?")


def seconds_of(date: str | None) -> float | None:
    """Seconds since 1970 of a `Date` header; None if it is missing, or no date that there is."""
    try:
        told = parsedate_to_datetime(date or "")
        return told.replace(tzinfo=told.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def retry_after_seconds(header: str | None, now: float) -> float | None:
    """How long a `Retry-After` header asks to wait: seconds, or the date after which to come again.

    `now` is the server's time in seconds since 1970. A date that has passed is 0. A header that
    is missing, negative or no number and no date is None. The caller bounds the result.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    at = seconds_of(text)
    return None if at is None else max(at - now, 0.0)
