"""Work that callers do together, such as connecting.

A caller that comes while it is under way waits for its end and shares its outcome. With a lock
instead, callers of a silent server would wait for one deadline after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from towline_once.errors import Unavailable


class SharedAttempt:
    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._under_way: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        attempt = self._under_way
        if attempt is None or attempt.done():  # its end may be still to be told
            attempt = self._under_way = asyncio.get_running_loop().create_task(self._run())
            attempt.add_done_callback(self._ended)
        try:
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled() and not _is_cancelled_itself():
                raise Unavailable("it was closed meanwhile") from None
            raise

    async def abandon(self) -> None:
        """End what is under way: to its callers it is unavailable."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def _run(self) -> None:
        await self._work()

    def _ended(self, attempt: asyncio.Task[None]) -> None:
        if self._under_way is attempt:
            self._under_way = None
        if not attempt.cancelled():
            attempt.exception()  # else asyncio warns when every caller has left before the end


def _is_cancelled_itself() -> bool:
    caller = asyncio.current_task()
    return caller is not None and caller.cancelling() > 0
