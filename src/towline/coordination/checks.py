"""Arguments that come from callers, checked where they enter."""

from __future__ import annotations

from towline.errors import Rejected

_LONGEST = 512
_LONGEST_SECONDS = 10 * 365 * 86400


def name_of(key: str, what: str) -> str:
    if not isinstance(key, str) or not key:
        raise Rejected(f"{what} is a text of at least one character, not {key!r}")
    if len(key.encode(errors="surrogatepass")) > _LONGEST or "\x00" in key:
        raise Rejected(f"{what} is at most {_LONGEST} bytes long and has no NUL character")
    return key


def microseconds(what: str, seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise Rejected(f"{what} is a number of seconds, not {seconds!r}")
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise Rejected(f"{what} is above zero and at most ten years, not {seconds!r}")
    return max(1, int(seconds * 1_000_000))


def wait_of(seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise Rejected(f"wait_seconds is zero or more, not {seconds!r}")
    return min(float(seconds), float(_LONGEST_SECONDS))


def at_least_one(what: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Rejected(f"{what} is a whole number of at least 1, not {value!r}")
    return value
