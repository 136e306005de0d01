"""Patterns of LIKE, with `!` as the escape."""

from __future__ import annotations


def containing(words: str) -> str:
    """Finds these words anywhere, whatever characters they have; for text in lower case."""
    escaped = words.lower()
    for special in "!%_":
        escaped = escaped.replace(special, f"!{special}")
    return f"%{escaped}%"
