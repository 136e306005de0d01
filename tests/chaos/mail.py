"""The webhooks of the storm: posted without end, a third of them repeats, until it is over."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from tests.e2e.senders import Parcel

_MOST_WAITING = 400
_REMEMBERED = 2_000
_REPEATED = 1 / 3


class Mail:
    """Parcels one after the other, at a pace.

    `fresh` makes a new one; when it is told that it is over, only if something is left to tell.

    While `backlog` says that much waits, nothing is sent: a slow machine has less to do, and no
    more time is needed at the end.
    """

    def __init__(
        self,
        dice: random.Random,
        fresh: Callable[[bool], Parcel | None],
        pace: tuple[float, float],
        backlog: Callable[[], int],
    ) -> None:
        self._dice = dice
        self._fresh = fresh
        self._pace = pace
        self._backlog = backlog
        self._recent: deque[Parcel] = deque(maxlen=_REMEMBERED)
        self.over = False
        self.unique: list[Parcel] = []
        """What was made; the requests of old ones are forgotten."""

    async def following(self) -> Parcel | None:
        await asyncio.sleep(self._dice.uniform(*self._pace))
        while self._backlog() > _MOST_WAITING and not self.over:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        return self._one()

    def _one(self) -> Parcel | None:
        if not self.over and self._recent and self._dice.random() < _REPEATED:
            return self._dice.choice(self._recent)
        made = self._fresh(self.over)
        if made is None:
            return None
        self._recent.append(made)
        self.unique.append(Parcel(made.delivery_id, b""))
        return made
