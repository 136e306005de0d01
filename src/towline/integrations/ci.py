"""The protocol of a CI system that builds when it is asked to; `jenkins/ci.py` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from towline_once.errors import Rejected, Unavailable


class CiUnavailable(Unavailable):
    """The CI system did not answer, or failed: whether it builds is not known."""


class CiRefused(Rejected):
    """The CI system has no such job, or the credentials do not open it."""


BuildState = Literal["queued", "running", "succeeded", "failed", "cancelled", "gone"]


class Build(NamedTuple):
    """`url` is that of the queue's item until the build has begun, then of the build."""

    url: str
    state: BuildState
    number: int | None = None


class Ci(Protocol):
    """Each call ends by its deadline."""

    async def build(self, job: str, parameters: Mapping[str, str]) -> Build: ...

    async def read(self, url: str) -> Build: ...

    async def log(self, url: str, most_bytes: int) -> str:
        """The end of a build's log."""
        ...

    async def aclose(self) -> None: ...
