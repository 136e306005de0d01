"""Something to look at while a command takes its time; only on a terminal, and not at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")
_SECONDS: Final = 2.0


def run(what: str, work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end, and say what it is if it takes long."""

    async def shown() -> T:
        async with _status_after_a_while(what):
            return await work

    return asyncio.run(shown())


@asynccontextmanager
async def _status_after_a_while(what: str) -> AsyncIterator[None]:
    showing = asyncio.create_task(_show(what))
    try:
        yield
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing


async def _show(what: str) -> None:
    await asyncio.sleep(_SECONDS)
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            await asyncio.Event().wait()
