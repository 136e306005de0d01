"""Visitors of locks behind the fault proxies: tokens only grow, whatever happens to servers."""

from __future__ import annotations

import asyncio
from collections import Counter

import towline

_KEY = "chaos"
_TTL = 3.0
_VISITORS = 2


class Visitors:
    """Two who enter one lock in turn. `alone` is whether they may never meet inside.

    A Redis that lost everything may let in a second one while the first is inside. Its tokens grow
    over that all the same, and they are what decides.
    """

    def __init__(self, name: str, url: str, *, alone: bool) -> None:
        self.name = name
        self.tokens: list[int] = []
        self.trouble: Counter[str] = Counter()
        self.over = asyncio.Event()
        self._url = url
        self._alone = alone
        self._inside = 0
        self._meetings = 0

    async def run(self) -> None:
        async with towline.Locks.open(self._url) as locks, asyncio.TaskGroup() as group:
            for _ in range(_VISITORS):
                group.create_task(self._visit_always(locks))

    async def _visit_always(self, locks: towline.Locks) -> None:
        while not self.over.is_set():
            try:
                await self._visit(locks)
            except (towline.Transient, towline.LockTimeout, towline.LeaseLost) as trouble:
                self.trouble[type(trouble).__name__] += 1
                await asyncio.sleep(0.1)

    async def _visit(self, locks: towline.Locks) -> None:
        async with locks.acquire(_KEY, ttl_seconds=_TTL, wait_seconds=5) as lease:
            self.tokens.append(lease.token)
            self._meetings += self._inside > 0
            self._inside += 1
            try:
                await asyncio.sleep(0.05)
            finally:
                self._inside -= 1

    def violations(self) -> list[str]:
        found = [
            f"a token of the lock in {self.name} went from {old} to {new}"
            for old, new in zip(self.tokens, self.tokens[1:], strict=False)
            if new <= old
        ]
        if self._alone and self._meetings:
            found.append(f"{self._meetings} visitors met inside of the lock in {self.name}")
        if not self.tokens:
            found.append(f"nobody ever got the lock in {self.name}")
        return found
