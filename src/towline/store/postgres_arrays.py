"""Columns of a batch as PostgreSQL array literals.

asyncpg would take the lists themselves, but asks of each element whether it is a container; at
thirty elements a cycle that costs more than the rest of the call. Written as one text a column,
the server splits it in C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter

import orjson

from towline.store.sql import Row, Statement

# In a JSON text only \" and \\ mean the same as in an array literal.
_OTHER_ESCAPE = re.compile(r'\\[^"\\]')

_FIRST, _FIRST_TWO = itemgetter(0), itemgetter(0, 1)


def columns_of(statement: Statement, rows: Sequence[Row]) -> list[str]:
    """Rows that are written go in the order of their keys, lest two statements lock each other."""
    if statement.writes and len(rows) > 1:
        rows = sorted(rows, key=_FIRST_TWO if len(statement.columns) > 1 else _FIRST)
    return [array_literal(column) for column in zip(*rows, strict=True)]


def array_literal(values: Sequence[str | int | bytes | None]) -> str:
    """JSON has the same quotes, and almost the same escapes; bytes are written in hex."""
    if isinstance(values[0], bytes):
        return "{" + ",".join([f'"\\\\x{value.hex()}"' for value in values]) + "}"  # type: ignore[union-attr]
    text = orjson.dumps(values).decode()
    if "\\" in text and _OTHER_ESCAPE.search(text):
        return "{" + ",".join(map(_element, values)) + "}"
    return "{" + text[1:-1] + "}"


def _element(value: str | int | bytes | None) -> str:
    if value is None:
        return "NULL"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
