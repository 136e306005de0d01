"""Work that goes on when its caller has left; a handle waits for it when it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from towline_once.errors import Transient

# ------------------------------------------------------------------ waiting with an end
# Waiting with an end.


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


# ------------------------------------------------------------------ work in the background

_PAUSES = (0.0, 0.25, 1.0, 4.0, 15.0, 60.0)
T = TypeVar("T")


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio warns when the caller has left before the end

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to the end although the caller is cancelled meanwhile."""
        task = self.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise

    def undo(self, work: Callable[[], Awaitable[object]]) -> None:
        """Take back a step whose caller left before its answer; again if the store is away."""
        self.start(self._insist(work))

    async def _insist(self, work: Callable[[], Awaitable[object]]) -> None:
        for pause in _PAUSES:
            if pause:
                await wait_for(self._closing, pause)
            try:
                await work()
            except Transient:
                if self._closing.is_set():
                    return
            else:
                return

    async def aclose(self) -> None:
        self._closing.set()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
