"""Ids in the order of time, so that an index grows at its end."""

from __future__ import annotations

from uuid import UUID


def ordered_uuid(now_us: int, dice: bytes) -> UUID:
    """A UUID of version 7, to the microsecond: later ones sort later. `dice` are random bytes."""
    milliseconds, rest = divmod(now_us, 1000)
    time = (milliseconds & (2**48 - 1)) << 16 | 7 << 12 | rest * 4096 // 1000
    return UUID(int=time << 64 | 2 << 62 | int.from_bytes(dice[:8], "big") & (2**62 - 1))


def job_id(unique: UUID) -> str:
    return f"job_{unique.hex}"
