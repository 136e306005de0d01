"""Tells people through apprise: Slack, Teams, mail and whatever else an address names.

Addresses hold secrets, so none of them is ever part of a message, a log line or a `repr`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from towline_once.errors import MissingExtra, Rejected, Unavailable

_SECONDS = 30.0


class AppriseNotifier:
    """Each message is sent from a thread, as apprise blocks, and is given up after a while."""

    def __init__(self, urls: Sequence[str], *, deadline_seconds: float = _SECONDS) -> None:
        self._deadline = deadline_seconds
        self._targets = _targets(urls)
        self._count = len(urls)

    def __repr__(self) -> str:
        return f"AppriseNotifier({self._count} addresses)"

    async def notify(self, title: str, text: str) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                told = await asyncio.to_thread(self._send, title, text)
        except TimeoutError:
            raise Unavailable(f"the message was not taken within {self._deadline:g} s") from None
        if not told:
            raise Unavailable("not all who should have been told could be reached")

    def _send(self, title: str, text: str) -> bool:
        """False if any of them failed; apprise does not say which."""
        return bool(self._targets.notify(title=title, body=text))


def _targets(urls: Sequence[str]) -> Any:
    try:
        import apprise
    except ImportError:
        raise MissingExtra("notifications need towline[notify]") from None
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its lines may show addresses
    targets = apprise.Apprise()
    for place, url in enumerate(urls, start=1):
        if not targets.add(url):
            raise Rejected(f"notify.urls: apprise does not understand address {place}")
    return targets


# ------------------------------------------------------------------ the protocol
# Tells people.


class Notifier(Protocol):
    async def notify(self, title: str, text: str) -> None:
        """`Unavailable` if not all who should have been told were; it may be tried again."""
        ...
