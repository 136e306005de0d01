"""Rows for people: a table on a terminal; elsewhere a line each, which other programs can cut.

What comes from outside is shown, and never obeyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

_LONGEST: Final = 300
_GAP: Final = "  "


class Column(NamedTuple):
    """One that `folds` gives way where the terminal is narrow."""

    name: str
    folds: bool = False


def show_rows(columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> None:
    """Nothing at all where there are no rows."""
    console, listed = terminal(), list(rows)
    if not console.is_terminal:
        for row in listed:
            joined = Text(_GAP).join(row)
            joined.rstrip()
            console.print(joined, soft_wrap=True)
    elif listed:
        console.print(_table(columns, listed))


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        least = len(column.name)
        table.add_column(column.name, no_wrap=not column.folds, overflow="fold", min_width=least)
    for row in rows:
        table.add_row(*row)
    return table


def coloured(word: str, colours: Mapping[str, str]) -> Text:
    return Text(clean(word), style=colours.get(word, ""))


def clean(value: object) -> str:
    """On one line, and without a letter that a terminal would act upon."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def terminal() -> Console:
    return Console(highlight=False)
