"""What can be read from time to time where no webhook comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from towline.ports.pruning import Pruned
from towline.sources.delivery import Delivery


class Thing(NamedTuple):
    """A merge request, pull request or issue as a list shows it."""

    id: str
    at_us: int
    """When it last changed, by the server's clock."""
    delivery: Delivery
    """As a webhook would tell of it, with a key of its own."""


class Page(NamedTuple):
    things: Sequence[Thing]
    next: str | None
    """The cursor of the page after this one."""


class Polled(Protocol):
    """One source. Each call ends by its deadline; `ForgeUnavailable` says when to come again."""

    @property
    def name(self) -> str:
        """As it is shown, and as its watermark is kept."""
        ...

    @property
    def newest_first(self) -> bool:
        """Whether its lists begin with what changed last; else they end with it."""
        ...

    @property
    def grain_us(self) -> int:
        """How precisely it can be asked for what changed since a moment."""
        ...

    async def now_us(self) -> int:
        """The server's time, of an answer that ended before this returns."""
        ...

    async def page(self, since_us: int, cursor: str | None = None) -> Page:
        """Things that changed since then; there may be older ones among them."""
        ...

    async def said(self, thing: Thing, since_us: int) -> Sequence[Delivery]:
        """What was said about it since then, oldest first."""
        ...

    async def aclose(self) -> None: ...


class Owners(Protocol):
    async def is_owner(self, thing: str, delivery: str, ttl_us: int) -> bool:
        """Whether this delivery was the first to tell of the thing; the first one stays it."""
        ...

    async def prune(self, most: int) -> Pruned:
        """Forget what was told long ago."""
        ...
