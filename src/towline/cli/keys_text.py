"""API keys as rows for people, without their secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from towline.cli.listing import Column, clean, show_rows

_KEYS: Final = (
    Column("prefix"),
    Column("scopes", folds=True),
    Column("state"),
    Column("name", folds=True),
)


def show_keys(found: Sequence[Mapping[str, Any]]) -> None:
    show_rows(_KEYS, map(_row, found))


def _row(key: Mapping[str, Any]) -> list[Text]:
    revoked = key["revoked_at"]
    state = Text(f"revoked {revoked}", style="dim") if revoked else Text("valid", style="green")
    return [Text(key["prefix"]), Text(" ".join(key["scopes"])), state, Text(clean(key["name"]))]
