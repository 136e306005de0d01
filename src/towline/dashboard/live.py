"""What changes, as server-sent events: one look at the store serves everybody who watches.

While a person watches, the board is read every few seconds, and those pull requests that a person
has open. An event says how many are in each state and which cards have changed; the browser then
fetches what it shows. There is room for a bounded number of watchers. A stream ends after some
minutes, and the browser's next one shows its session anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import orjson
from starlette.responses import Response, StreamingResponse

from towline.dashboard.fleet import board_of
from towline.dashboard.page_request import Visit, page
from towline.dashboard.queries import SqlInsights
from towline.dashboard.render import GUARDS
from towline.pulls.http_models import parsed_ref
from towline.pulls.lifecycle import State
from towline.reconciler.access import Tow
from towline_once.asgi.messages import Problem
from towline_once.ports import Clock

MOST_WATCHERS: Final = 50
EVERY_SECONDS: Final = 2.0
HEARTBEAT_SECONDS: Final = 15.0
LONGEST_SECONDS: Final = 600.0
_MOST_WAITING: Final = 8
_MOST_NAMED: Final = 200
_RETRY_MS: Final = 3_000
_log = logging.getLogger("towline.web")

Ref: TypeAlias = tuple[str, int]


class Watcher:
    """One stream; a slow one misses events, and the next tells it all the same."""

    def __init__(self, ref: Ref | None) -> None:
        self.ref = ref
        self.greeted = False
        self.waiting: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)

    def tell(self, message: str | None) -> None:
        if self.waiting.full():
            self.waiting.get_nowait()
        self.waiting.put_nowait(message)


class Live:
    def __init__(
        self,
        insights: SqlInsights,
        tow: Tow,
        clock: Clock,
        *,
        every: float = EVERY_SECONDS,
        most: int = MOST_WATCHERS,
    ) -> None:
        self._insights = insights
        self._tow = tow
        self._clock = clock
        self._every = every
        self._most = most
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[Ref, object] = {}
        self._counts: Mapping[State, int] = {}

    def check_room(self) -> None:
        if len(self._watchers) >= self._most:
            problem = Problem(503, "too_many_watchers", "too many pages are open; try again later")
            raise problem.retry_after(30)

    @contextlib.contextmanager
    def watching(self, ref: Ref | None) -> Iterator[Watcher]:
        self.check_room()
        watcher = Watcher(ref)
        self._watchers.add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_on())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """End all streams, as the server goes down."""
        self._most = 0
        for watcher in self._watchers:
            watcher.tell(None)

    async def _look_on(self) -> None:
        """As long as anybody watches."""
        while self._watchers:
            present = list(self._watchers)
            try:
                changed = await self._look(present)
            except Exception as error:
                _log.warning("the board cannot be read for those who watch: %s", error)
            else:
                self._tell(present, changed)
            await asyncio.sleep(self._every)

    async def _look(self, watchers: Iterable[Watcher]) -> list[Ref] | None:
        """What is not as it was at the last look; None if all is."""
        board = await board_of(self._insights, self._tow, self._clock.now_us())
        seen: dict[Ref, object] = {
            card.ref[1:]: (card.version, card.stale)
            for column in board.columns
            for card in column.cards
        }
        for ref in {one.ref for one in watchers if one.ref is not None} - set(seen):
            record = await self._tow.pulls.read(*ref)
            seen[ref] = record.version if record is not None else None
        before, self._seen = self._seen, seen
        counts, self._counts = self._counts, board.counts
        changed = [ref for ref in {**before, **seen} if before.get(ref) != seen.get(ref)]
        return changed if changed or counts != self._counts else None

    def _tell(self, watchers: Iterable[Watcher], changed: list[Ref] | None) -> None:
        """A new watcher is greeted: from here on no change is missed."""
        named = [f"{repo}#{number}" for repo, number in (changed or [])[:_MOST_NAMED]]
        news = {"counts": self._counts, "changed": named}
        for watcher in watchers:
            if not watcher.greeted:
                watcher.greeted = True
                watcher.tell(_message("hello", {"counts": self._counts, "changed": []}))
            elif changed is not None:
                watcher.tell(_message("board", news))


def _message(event: str, data: object) -> str:
    return f"event: {event}\ndata: {orjson.dumps(data).decode()}\n\n"


@page
async def stream(visit: Visit) -> Response:
    """`?pr=OWNER/NAME#N` also watches one pull request, wherever it stands."""
    live: Live = visit.request.app.state.live
    ref = parsed_ref(visit.given("pr") or "")
    live.check_room()
    headers = {**GUARDS, "cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_messages(live, ref), media_type="text/event-stream", headers=headers)


async def _messages(live: Live, ref: Ref | None) -> AsyncIterator[str]:
    """A place is taken only when it begins, so that one who left before that holds none."""
    with contextlib.suppress(Problem), live.watching(ref) as watcher:
        yield f"retry: {_RETRY_MS}\n\n"
        loop = asyncio.get_running_loop()
        end = loop.time() + LONGEST_SECONDS
        while loop.time() < end:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    message = await watcher.waiting.get()
            except TimeoutError:
                message = ": still here\n\n"
            if message is None:
                return
            yield message
