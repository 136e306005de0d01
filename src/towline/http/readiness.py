"""Whether work can be done now: each part of the service is tried with a write, and named.

Probes come often and from several sides, so they share one look, which counts for a second. Each
part has a deadline of its own, and all are tried at once: what fails does not hide the rest. The
answer says what is wrong in words that are the same for every installation; addresses and messages
of drivers go to the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from towline_once.asgi.messages import Problem
from towline_once.db.single_flight import SharedAttempt
from towline_once.errors import StoreFull
from towline_once.ports import Clock

READY_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 1.0
_OK: Final = "ok"
_READ_ONLY_TRANSACTION: Final = "25006"
_DISK_FULL: Final = "53100"

_log = logging.getLogger("towline.web")


class Readiness:
    """`parts` names what work needs, each with a call that raises where it fails."""

    def __init__(
        self,
        parts: Mapping[str, Callable[[], Awaitable[object]]],
        clock: Clock,
        seconds: float = READY_SECONDS,
    ) -> None:
        self._parts = dict(parts)
        self._clock = clock
        self._seconds = seconds
        self._found: dict[str, str] = {}
        self._fresh_until = float("-inf")
        self._looking = SharedAttempt(self._look)

    async def __call__(self) -> dict[str, str]:
        """Each part and how it is: `ok`, or what is wrong with it."""
        if self._clock.monotonic() >= self._fresh_until:
            await self._looking()
        return dict(self._found)

    async def check(self) -> dict[str, str]:
        """As the call; a part that fails is a 503 that names it."""
        found = await self()
        failing = {name: trouble for name, trouble in found.items() if trouble != _OK}
        if not failing:
            return found
        detail = "; ".join(f"{name}: {trouble}" for name, trouble in failing.items())
        problem = Problem(503, "not_ready", detail, parts=found, failing=[*failing])
        raise problem.retry_after(READY_SECONDS)

    async def _look(self) -> None:
        states = await asyncio.gather(*(self._try(name) for name in self._parts))
        self._found = dict(zip(self._parts, states, strict=True))
        self._fresh_until = self._clock.monotonic() + _FRESH_SECONDS

    async def _try(self, name: str) -> str:
        try:
            async with asyncio.timeout(self._seconds):
                await self._parts[name]()
        except TimeoutError:
            return f"no answer within {self._seconds:g} s"
        except Exception as error:
            _log.warning("not ready: %s: %s", name, error)
            return _trouble(error)
        return _OK


def _trouble(error: Exception) -> str:
    """What is wrong, without a word of the error itself."""
    for one in _chain(error):
        text, state = str(one), getattr(one, "sqlstate", None)
        if state == _READ_ONLY_TRANSACTION or "readonly" in text:
            return "read-only: it takes no writes"
        if isinstance(one, StoreFull) or state == _DISK_FULL or "disk is full" in text:
            return "the disk is full"
        if "disk I/O error" in text:
            return "the disk refuses to write"
    return "not reachable"


def _chain(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__
