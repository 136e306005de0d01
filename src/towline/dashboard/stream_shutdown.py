"""The end of streams that are open when the server goes down."""

from __future__ import annotations

from collections.abc import Callable


class Farewell:
    """Tells the streams that are open when the server goes down: it would wait for their end."""

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []

    def tells(self, end: Callable[[], None]) -> None:
        self._told.append(end)

    def say(self) -> None:
        for end in self._told:
            end()
