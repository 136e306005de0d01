"""The slash commands in what people write: which there are, and how a comment is read."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

Command: TypeAlias = Literal[
    "/rebuild",
    "/recheck-policy",
    "/recheck-sod",
    "/recheck-approval",
    "/merge",
    "/update-branch",
    "/close-and-reopen",
    "/cancel",
    "/why",
]
COMMANDS: Final[tuple[Command, ...]] = get_args(Command)

NEEDS_NO_FORGE: Final = frozenset({"/hold", "/unhold", "/priority", "/requeue"})
"""These change what Towline knows, and nothing at the forge."""

_LINE: Final = re.compile(r"/[a-z][a-z-]{1,40}(?=\s|$)")
_MOST_LINES: Final = 200


class Parsed(NamedTuple):
    """Commands in the order they were given, each once, and what looked like one but is none."""

    commands: tuple[Command, ...]
    unknown: tuple[str, ...]


def parse(text: str) -> Parsed:
    """The commands of a comment: each at the start of a line, outside of quotes and code."""
    commands: list[Command] = []
    unknown: list[str] = []
    fence = ""
    for line in text.splitlines()[:_MOST_LINES]:
        marker = line.lstrip()[:3]
        if marker in ("```", "~~~"):
            fence = "" if fence == marker else fence or marker
            continue
        found = None if fence or line.startswith(("    ", "\t")) else _LINE.match(line.lstrip())
        if found is None:
            continue
        word = found[0]
        known = next((command for command in COMMANDS if command == word), None)
        if known is not None and known not in commands:
            commands.append(known)
        elif known is None and word not in unknown:
            unknown.append(word)
    return Parsed(tuple(commands), tuple(unknown))


def needs_forge(command: str) -> bool:
    """Whether it takes credentials for the forge to carry a command out."""
    return command not in NEEDS_NO_FORGE
