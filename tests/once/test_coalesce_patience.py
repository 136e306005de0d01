"""A coalescer with a patience: nobody waits longer, whether its flight hangs or has not left."""

from __future__ import annotations

import asyncio
import time

import pytest

from towline_once.db.batching import Coalescer
from towline_once.errors import Unavailable

PATIENCE = 0.3


async def test_who_flies_and_who_waits_are_both_told_in_time() -> None:
    """The flight never lands: those aboard and those behind it end by the same patience."""
    landed: list[int] = []

    async def fly(items: list[int]) -> list[int]:
        await asyncio.sleep(60)
        landed.extend(items)
        return items

    calls: Coalescer[int, int] = Coalescer(fly, seats=2, patience=PATIENCE)
    began = time.monotonic()
    told = await asyncio.gather(*(calls.submit(n) for n in range(5)), return_exceptions=True)
    assert PATIENCE <= time.monotonic() - began < PATIENCE + 2
    assert [type(one) for one in told] == [Unavailable] * 5
    assert landed == []


async def test_who_lands_is_not_bothered() -> None:
    """The deadline of a call that ended in time says nothing any more, and later calls fly."""

    async def fly(items: list[int]) -> list[int]:
        return items

    calls: Coalescer[int, int] = Coalescer(fly, patience=0.05)
    for turn in range(3):
        assert await calls.submit(turn) == turn
        await asyncio.sleep(0.06)
    with pytest.raises(asyncio.InvalidStateError):
        calls.submit(9).exception()
