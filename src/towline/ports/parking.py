"""Events that wait for a pull request that is not recorded yet, or for a head that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from towline.core.events import Event
from towline.ports.inbox import Stored
from towline.ports.pruning import Pruned


class Parked(NamedTuple):
    """An event of a delivery, and what it waits for."""

    delivery_key: str
    place: int
    """Which event of the delivery it is."""
    number: int
    """0 if it lists no pull request."""
    repo: str
    """Empty if it names none."""
    head_sha: str | None
    """The commit that must be the head; None if any will do."""
    delivery_id: str
    source: str
    """The sender of the delivery."""
    event: Event
    at_us: int
    """By the sender's clock; else when it was received."""
    received_us: int

    @classmethod
    def of(
        cls, stored: Stored, place: int, event: Event, number: int, head_sha: str | None
    ) -> Parked:
        at = event.occurred_at
        received_us = stored.received_us or 0
        return cls(
            delivery_key=stored.key,
            place=place,
            number=number,
            repo=event.repo or "",
            head_sha=head_sha,
            delivery_id=stored.delivery_id,
            source=stored.source,
            event=event,
            at_us=received_us if at is None else int(at * 1_000_000),
            received_us=received_us,
        )

    @property
    def stored(self) -> Stored:
        """The delivery, without its body."""
        return Stored(
            key=self.delivery_key,
            delivery_id=self.delivery_id,
            source=self.source,
            event_name="",
            repo=self.repo or None,
            body=None,
            job_id="",
            throttled=0,
            copies=0,
            received_us=self.received_us,
            last_seen_us=self.received_us,
        )


class Parking(Protocol):
    async def park(self, events: Sequence[Parked]) -> None:
        """What is parked already stays as it is."""
        ...

    async def waiting_for(self, repo: str, number: int, head_sha: str | None) -> list[Parked]:
        """What this pull request with this head brings out, in the order of the senders' times."""
        ...

    async def remove(self, events: Sequence[Parked]) -> None: ...

    async def prune(self, most: int) -> Pruned:
        """Forget what waited too long, and the oldest where too much waits."""
        ...
