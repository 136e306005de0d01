"""Columns of a batch as PostgreSQL array literals.

asyncpg would take the lists themselves, but asks of each element whether it is a container; at
thirty elements a cycle that costs more than the rest of the call. Written as one text a column,
the server splits it in C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter

import orjson

from towline.store.sql import Row, Statement

# In a JSON text only \" and \\ mean the same as in an array literal.
_OTHER_ESCAPE = re.compile(r'\\[^"\\]')

_FIRST, _FIRST_TWO = itemgetter(0), itemgetter(0, 1)


def columns_of(statement: Statement, rows: Sequence[Row]) -> list[str | bytes]:
    """Rows that are written go in the order of their keys, lest two statements lock each other."""
    if statement.writes and len(rows) > 1:
        rows = sorted(rows, key=_FIRST_TWO if len(statement.columns) > 1 else _FIRST)
    columns: list[str | bytes] = []
    for kind, column in zip(statement.columns.values(), zip(*rows, strict=True), strict=True):
        columns += in_one_piece(column) if kind == "bytea" else [array_literal(column)]
    return columns


def in_one_piece(values: Sequence[bytes]) -> list[str | bytes]:
    """As they are: in an array literal they would be twice as long, and read byte by byte."""
    lengths = list(map(len, values))
    starts = accumulate(lengths[:-1], initial=1)
    return [b"".join(values), array_literal(list(starts)), array_literal(lengths)]


def array_literal(values: Sequence[str | int | None]) -> str:
    """JSON has the same quotes, and almost the same escapes."""
    text = orjson.dumps(values).decode()
    if "\\" in text and _OTHER_ESCAPE.search(text):
        return "{" + ",".join(map(_element, values)) + "}"
    return "{" + text[1:-1] + "}"


def _element(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
