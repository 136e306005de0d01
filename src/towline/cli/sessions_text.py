"""Sessions of the dashboard as rows for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from towline.cli.listing import Column, clean, show_rows

_SESSIONS: Final = (
    Column("id"),
    Column("key"),
    Column("signed in"),
    Column("last seen"),
    Column("address"),
    Column("browser", folds=True),
)


def show_sessions(found: Sequence[Mapping[str, Any]]) -> None:
    show_rows(_SESSIONS, map(_row, found))


def _row(one: Mapping[str, Any]) -> list[Text]:
    names = ("id", "key", "created_at", "last_seen_at", "address", "user_agent")
    return [Text(clean(str(one[name]))) for name in names]
