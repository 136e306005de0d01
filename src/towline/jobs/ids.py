"""Ids in the order of time, so that an index grows at its end."""

from __future__ import annotations

import hashlib
from uuid import UUID


def ordered_uuid(now_us: int, dice: bytes) -> UUID:
    """A UUID of version 7, to the microsecond: later ones sort later. `dice` are random bytes."""
    return UUID(int=_number(now_us, dice))


def job_id(now_us: int, dice: bytes) -> str:
    return f"job_{_number(now_us, dice):032x}"


def mark_of(key: str) -> str:
    """A short word that stands for a key, whatever is in it."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _number(now_us: int, dice: bytes) -> int:
    milliseconds, rest = divmod(now_us, 1000)
    time = (milliseconds & (2**48 - 1)) << 16 | 7 << 12 | rest * 4096 // 1000
    return time << 64 | 2 << 62 | int.from_bytes(dice[:8], "big") & (2**62 - 1)
