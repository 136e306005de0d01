"""What the dashboard works with besides the control plane and the tow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from towline.dashboard.queries import SqlInsights
from towline.dashboard.session import Sessions
from towline.dashboard.stream_shutdown import Farewell
from towline.fix.http import Runs
from towline.forges.base import Forge


class Desk(NamedTuple):
    """`runs` is None where nothing is fixed, `audit_file` where the audit goes to the log.

    Only a demo has a `strip`.
    """

    insights: SqlInsights
    sessions: Sessions
    runs: Runs | None = None
    audit_file: Path | None = None
    forges: Mapping[str, Forge] = {}
    farewell: Farewell | None = None
    strip: Strip | None = None
    troubles: Callable[[], Sequence[str]] = tuple
    """What a person should know of this process, each in a sentence."""


class Lever(NamedTuple):
    """`on` is None for what is done once, and tells the position of what stays as it was put."""

    name: str
    label: str
    hint: str
    on: bool | None = None


class Figure(NamedTuple):
    name: str
    value: str
    alarming: bool = False


class Strip(Protocol):
    """`code` opens the door without a key, `key` is whose visit that is then."""

    code: str
    key: str

    def figures(self) -> Sequence[Figure]: ...

    def levers(self) -> Sequence[Lever]: ...

    def pull(self, name: str) -> bool:
        """Whether there is such a lever; it was pulled then."""
        ...
