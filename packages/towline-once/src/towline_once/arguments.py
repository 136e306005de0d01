"""Arguments that come from callers, checked where they enter."""

from __future__ import annotations

from towline_once.errors import Rejected

_LONGEST = 512
_LONGEST_SECONDS = 10 * 365 * 86400
_MOST = 2**31 - 1


def name_of(key: str, what: str) -> str:
    if not isinstance(key, str) or not key:
        raise Rejected(f"{what} is a text of at least one character, not {shown(key)}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise Rejected(f"{what} is valid Unicode, without lone surrogates") from None
    if size > _LONGEST or "\x00" in key:
        raise Rejected(f"{what} is at most {_LONGEST} bytes long and has no NUL character")
    return key


def microseconds(what: str, seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise Rejected(f"{what} is a number of seconds, not {shown(seconds)}")
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise Rejected(f"{what} is above zero and at most ten years, not {shown(seconds)}")
    return max(1, int(seconds * 1_000_000))


def wait_of(seconds: float, what: str = "wait_seconds") -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise Rejected(f"{what} is a number of seconds, zero or more, not {shown(seconds)}")
    return float(min(seconds, _LONGEST_SECONDS))


def at_least_one(what: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise Rejected(f"{what} is a whole number from 1 to {_MOST}, not {shown(value)}")
    return value


def share_of(what: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise Rejected(f"{what} is a share above 0 and at most 1, not {shown(value)}")
    return value


def shown(value: object) -> str:
    """What was given, cut short; Python refuses to write integers of thousands of digits."""
    try:
        return repr(value)[:100]
    except ValueError:
        return "a number that is far too long"
