"""The pages of the documentation, cut into the blocks of code that they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(
    r"(?:<!-- (?P<mark>not run|session): (?P<why>[^\n]*?) -->\n+)?"
    r"(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
SHELLS = ("sh", "console")


class Block(NamedTuple):
    """A block of a page. `not_run` is the reason that the page itself gives, in a comment."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None
    session: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The README of each distribution, and everything in docs."""
    found = [*sorted(ROOT.glob("packages/*/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return ["README.md", *(page.relative_to(ROOT).as_posix() for page in found)]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    return list(_cut(page, text_of(page)))


def _cut(page: str, text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        line = text[: found.start("indent")].count("\n") + 1
        said = {found["mark"]: found["why"]}
        yield Block(
            page, line, found["language"], found["text"], said.get("not run"), said.get("session")
        )


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks_of(page)]


def shown(page: str, language: str) -> list[str]:
    """The texts of a page's blocks in a language."""
    return [block.text for block in blocks_of(page) if block.language == language]
