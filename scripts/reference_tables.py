"""A Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(_row(cells) for cells in lines)


def _row(cells: Sequence[str]) -> str:
    shown = " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    if set(shown) <= set("-| "):
        shown = "|".join(cells)
        return f"|{shown}|\n"
    return f"| {shown} |\n"
