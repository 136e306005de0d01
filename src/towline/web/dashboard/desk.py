"""What the dashboard works with besides the control plane and the tow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from towline.ports.coordination import DocumentStore
from towline.ports.dashboard import Insights
from towline.ports.forge import Forge
from towline.web.run_routes import Runs


class Farewell:
    """Tells the streams that are open when the server goes down: it would wait for their end."""

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []

    def tells(self, end: Callable[[], None]) -> None:
        self._told.append(end)

    def say(self) -> None:
        for end in self._told:
            end()


class Desk(NamedTuple):
    """`runs` is None where nothing is fixed, `audit_file` where the audit goes to the log."""

    insights: Insights
    documents: DocumentStore
    runs: Runs | None = None
    audit_file: Path | None = None
    forges: Mapping[str, Forge] = {}
    farewell: Farewell | None = None
