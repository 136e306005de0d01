"""Fix runs as rows for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from towline.cli.listing import Column, clean, coloured, show_rows

_RUNS: Final = (
    Column("run", folds=True),
    Column("repository"),
    Column("state"),
    Column("stage"),
    Column("tried"),
    Column("outcome", folds=True),
)
_COLOURS: Final = {"running": "cyan", "blocked": "bold red", "done": "green"}


def show_runs(found: Sequence[Mapping[str, Any]]) -> None:
    show_rows(_RUNS, map(_row, found))


def _row(item: Mapping[str, Any]) -> list[Text]:
    starts = f"starts at {item['starts_at']}" if item["starts_at"] else None
    outcome = starts or item["blocked_reason"] or item["last_pr_url"] or item["title"]
    attempts = item["attempt_count"]
    return [
        Text(clean(item["run_key"])),
        Text(clean(item["repo"])),
        coloured(item["state"], _COLOURS),
        Text(clean(item["stage"] or "-")),
        Text(f"{attempts} attempt{'' if attempts == 1 else 's'}"),
        Text(" ".join(clean(outcome).split())),
    ]
