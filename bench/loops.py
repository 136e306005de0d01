"""The event loop that every asyncio contender runs under; it imports nothing else of `bench`."""

from __future__ import annotations

from typing import Any


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop
