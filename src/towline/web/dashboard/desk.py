"""What the dashboard works with besides the control plane and the tow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from towline.ports.forge import Forge
from towline.store.dashboard import SqlInsights
from towline.web.dashboard.farewell import Farewell
from towline.web.dashboard.session import Sessions
from towline.web.run_routes import Runs

if TYPE_CHECKING:
    from towline.web.dashboard.demo_strip import Strip


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
