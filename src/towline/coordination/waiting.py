"""Waiting with an end."""

from __future__ import annotations

import asyncio


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
