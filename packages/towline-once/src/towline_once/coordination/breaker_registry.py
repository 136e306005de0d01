"""A list of the breakers in use, so that any process can show them and close them by hand.

A breaker is put on the list before it first admits anything; one that could be open is on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import orjson

from towline_once.coordination.circuit_breaker import BreakerService, Permit, Report, State
from towline_once.errors import Transient
from towline_once.ports import DocumentStore

MOST_LISTED = 10_000
_CONTENTION_ROUNDS = 32
_AT_A_TIME = 100
_log = logging.getLogger("towline.coordination")


class ListedBreaker:
    """A breaker that sees to it that it is on the list."""

    def __init__(self, board: BreakerBoard, breaker: BreakerService) -> None:
        self._board = board
        self._breaker = breaker

    @property
    def name(self) -> str:
        return self._breaker.name

    async def refresh(self) -> State:
        return await self._breaker.refresh()

    async def admit(self) -> Permit | None:
        await self._board.enter(self._breaker.name)
        return await self._breaker.admit()

    async def report(self) -> Report:
        return await self._breaker.report()


class BreakerBoard:
    """`open_one` makes the breaker of a name; those in `always` are shown also while unused."""

    def __init__(
        self,
        documents: DocumentStore,
        open_one: Callable[[str], BreakerService],
        *,
        roster: str = "breakers",
        always: Sequence[str] = (),
    ) -> None:
        self._documents = documents
        self._open_one = open_one
        self._roster = roster
        self._always = tuple(always)
        self._entered: set[str] = set()

    def open(self, name: str) -> ListedBreaker:
        return ListedBreaker(self, self._open_one(name))

    async def enter(self, name: str) -> None:
        """Put a name on the list, once."""
        if name in self._entered:
            return
        for _ in range(_CONTENTION_ROUNDS):
            document = await self._documents.read(self._roster)
            names = _names_in(document.body)
            if name not in names:
                body = orjson.dumps([*names, name][-MOST_LISTED:]).decode()
                if await self._documents.swap(self._roster, document.version, body) is None:
                    continue
            self._entered.add(name)
            return
        raise Transient("the list of breakers is changed by too many at once; try again")

    async def views(self) -> list[Report]:
        """All that are in use: those that always are first, then by name."""
        document = await self._documents.read(self._roster)
        names = [*self._always, *sorted(set(_names_in(document.body)) - set(self._always))]
        found: list[Report] = []
        for start in range(0, len(names), _AT_A_TIME):
            some = names[start : start + _AT_A_TIME]
            found += await asyncio.gather(*(self._open_one(name).report() for name in some))
        return found

    async def reset(self, name: str, by: str) -> None:
        await self._open_one(name).reset(by)


def _names_in(body: str) -> list[str]:
    """The names on a list; one that cannot be read is begun anew."""
    try:
        listed = orjson.loads(body or "[]")
    except orjson.JSONDecodeError:
        listed = None
    if not isinstance(listed, list):
        _log.warning("breaker_list_unreadable")
        return []
    return [name for name in listed if isinstance(name, str) and "\0" not in name]
