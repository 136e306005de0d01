"""Refuses a handle in the wrong place: in another event loop, after a fork, after its end.

What a handle is made of (sockets, futures, timers, threads) belongs to one event loop of one
process. Used elsewhere it would wait for wake-ups that never come, so each public call asks its
guard first. That has to be cheap, for it is on every hot path: two comparisons.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import get_running_loop

from towline_once.errors import Closed, Forked, WrongLoop

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class LoopGuard:
    """The loop and the process of a handle: those of its first use."""

    __slots__ = ("_closed", "_forks", "_loop")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks = 0
        self._closed = False

    def check(self, handle: str) -> None:
        """Raise `WrongLoop`, `Forked` or `Closed` unless the handle may be used here."""
        try:
            here = get_running_loop()
        except RuntimeError:
            self._refuse_outside(handle)
        else:
            if here is not self._loop or self._forks != _forks:
                self._bind(here, handle)

    def _bind(self, here: asyncio.AbstractEventLoop, handle: str) -> None:
        if self._loop is None and not self._closed:
            self._loop, self._forks = here, _forks
            return
        self._refuse_outside(handle)

    def _refuse_outside(self, handle: str) -> None:
        self.check_process(handle)
        if self._closed:
            raise Closed(f"this {handle} handle was closed; open another one")
        its_loop = "another event loop"
        if self._loop is not None and self._loop.is_closed():
            its_loop = "an event loop that is closed by now"
        raise WrongLoop(
            f"this {handle} handle belongs to {its_loop}, and cannot be used in this one; "
            "open one handle per loop, so also per thread that runs one"
        )

    def check_process(self, handle: str) -> None:
        """Raise `Forked` in a child of the process that opened the handle."""
        if self._loop is not None and self._forks != _forks:
            raise Forked(
                f"this {handle} handle was opened before the process forked, and its connections "
                "belong to the parent; open one in the child"
            )

    def is_here(self) -> bool:
        """Whether the loop of the handle runs in this thread."""
        return asyncio._get_running_loop() is self._loop

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """From now on every use is refused."""
        self._closed = True
        self._loop = None
