"""What the routes of the tow work with: as little of the tow as they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, Protocol

from fastapi import Depends, Request

from towline.core.sweep_policy import TowPolicy
from towline.ports.pulls import PullStore
from towline.web.auth import Principal
from towline.web.control_access import Needs


class Ordered(Protocol):
    """A command that is queued as a job."""

    @property
    def job_id(self) -> str: ...

    @property
    def command(self) -> str: ...

    @property
    def repo(self) -> str: ...

    @property
    def number(self) -> int: ...


class OrderedOrNot(Protocol):
    """One of a batch: its job, or why there is none."""

    @property
    def repo(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def job_id(self) -> str | None: ...

    @property
    def error(self) -> Literal["not_found", "not_now", "no_credentials"] | None: ...

    @property
    def reason(self) -> str: ...


class Orders(Protocol):
    """Takes commands, and has them carried out by and by."""

    async def order(
        self,
        repo: str,
        number: int,
        command: str,
        *,
        source: Literal["admin-api"],
        requested_by: str,
        key: str | None = None,
        at_us: int | None = None,
    ) -> Ordered:
        """With the same `key` and `at_us` it is the same job."""
        ...

    async def batch(
        self,
        refs: Sequence[tuple[str, int]],
        command: str,
        requested_by: str,
        *,
        key: str | None = None,
        at_us: int | None = None,
    ) -> Sequence[OrderedOrNot]:
        """In the order given, at a pace that overruns nobody; `key` is that of the whole batch."""
        ...


class Sweeper(Protocol):
    async def sweep(self, *, dry_run: bool = False) -> object:
        """The report, a NamedTuple."""
        ...


class BreakerView(Protocol):
    """How a breaker stands; the counts are those of its window."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> Literal["closed", "open", "half_open"]: ...

    @property
    def successes(self) -> int: ...

    @property
    def failures(self) -> int: ...

    @property
    def trips(self) -> int: ...

    @property
    def opened_us(self) -> int:
        """Zero while it is closed."""
        ...


class Breakers(Protocol):
    async def views(self) -> Sequence[BreakerView]: ...

    async def reset(self, name: str, by: str) -> None:
        """Close it."""
        ...


class Tow(NamedTuple):
    """The collaborators of these routes."""

    pulls: PullStore
    orders: Orders
    sweeper: Sweeper
    breakers: Breakers
    policy: TowPolicy


def tow_of(request: Request) -> Tow:
    tow: Tow = request.app.state.tow
    return tow


TheTow = Annotated[Tow, Depends(tow_of)]
Admin = Annotated[Principal, Depends(Needs("admin"))]
