"""A process that dies at a call, in a test that goes on with the next one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class Died(BaseException):
    """The process is gone."""


class Mortal:
    """Dies at the n-th call of `thing`, or of those named, before it or right after it."""

    def __init__(
        self, thing: Any, life: list[int], *, after: bool, at: Collection[str] | None = None
    ) -> None:
        self._thing, self._life, self._after, self._at = thing, life, after, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return self._dying(found) if self._at is None or name in self._at else found

    def _dying(self, call: Any) -> Any:
        async def wrapped(*args: Any) -> Any:
            self._life[0] -= 1
            if self._life[0] == 0 and not self._after:
                raise Died
            answer = await call(*args)
            if self._life[0] == 0:
                raise Died
            return answer

        return wrapped
