"""Tells people."""

from __future__ import annotations

from typing import Protocol


class Notifier(Protocol):
    async def notify(self, title: str, text: str) -> None:
        """`Unavailable` if not all who should have been told were; it may be tried again."""
        ...
