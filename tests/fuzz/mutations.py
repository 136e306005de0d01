"""Inputs for Hypothesis: seeds that were bent, words strung together, and plain bytes.

The bends are those that break parsers: a cut, a repeat, a splice, an odd byte, a member of another
type, and a short piece that is repeated thousands of times, which is what slow patterns choke on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz.target import LONGEST_INPUT, Target

_ODD_BYTES: Final = (
    *(b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1b", b"\x7f", b"\r", b"\n"),
    *(b"\t", b" ", b'"', b"'", b"\\", b"%", b":", b"{", b"}", b"[", b"]", b",", b"9" * 30, b"-1"),
    *("\u2028".encode(), "\u0660".encode(), "\u212a".encode(), "\u0130".encode(), b"\xc2\xb2"),
)
_ODD_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 2**53, 2**63, 2**64, 10**30, 1e308, "", "\0", "x" * 3000),
    *(
        [],
        {},
        [None],
        {"id": {}},
        [[[[[]]]]],
        "\ud83d\ude00",
        "9" * 40,
        "javascript:x",
        "..",
        "a/b",
    ),
)
_DEEP: Final = 300


def inputs(target: Target, seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Each is decided by one number, so that a failure is one line to repeat."""
    words = st.sampled_from((*target.words, *_ODD_BYTES))
    strung = st.lists(words | st.binary(max_size=6), max_size=12).map(b"".join)
    bent = st.integers(0, 2**48).map(lambda number: mutated(target, seeds, number))
    return st.binary(max_size=200) | strung | bent | bent if seeds else st.binary() | strung


def mutated(target: Target, seeds: Sequence[bytes], number: int) -> bytes:
    """A seed with one to four bends, the same ones for the same number."""
    dice = random.Random(number)
    data = dice.choice(seeds)
    for _ in range(dice.randint(1, 4)):
        data = _bent(data, dice, (*target.words, *_ODD_BYTES), seeds)
    return data[:LONGEST_INPUT]


def _bent(
    data: bytes, dice: random.Random, words: Sequence[bytes], seeds: Sequence[bytes]
) -> bytes:
    start, end = sorted((dice.randint(0, len(data)), dice.randint(0, len(data))))
    end = min(end, start + 200)
    match dice.randrange(9):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:]
        case 2:
            other = dice.choice(seeds)
            return data[:start] + other[dice.randint(0, len(other)) :]
        case 3:
            piece = data[start : start + dice.randint(1, 12)] or dice.choice(words)
            return data[:start] + pumped(piece, dice) + data[start:]
        case 4:
            return data[:start] + pumped(dice.choice(words), dice) + data[start:]
        case 5 | 6:
            return _with_odd_member(data, dice)
        case _:
            return data[:start] + dice.choice(words) + data[end if dice.random() < 0.3 else start :]


def pumped(piece: bytes, dice: random.Random) -> bytes:
    most = dice.choice((40, 400, LONGEST_INPUT // 2))
    return piece * max(1, most // max(len(piece), 1))


def _with_odd_member(data: bytes, dice: random.Random) -> bytes:
    """Of what ends in JSON, one value deleted, or replaced by one of another type."""
    begin = data.find(b"{")
    value: Any = None
    try:
        value = json.loads(data[begin:]) if begin >= 0 else None
        places = list(_places(value))
    except (ValueError, RecursionError):
        places = []
    if not places:
        return data + dice.choice(_ODD_BYTES)
    container, name = dice.choice(places)
    if isinstance(container, dict) and dice.random() < 0.2:
        del container[name]
    else:
        container[name] = _odd_value(dice)
    return data[:begin] + json.dumps(value, ensure_ascii=dice.random() < 0.5).encode(
        "utf-8", "surrogatepass"
    )


def _odd_value(dice: random.Random) -> Any:
    if dice.random() < 0.1:
        deep: Any = 1
        for _ in range(_DEEP):
            deep = [deep]
        return deep
    return dice.choice(_ODD_VALUES)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value, with each of its names or positions."""
    if not isinstance(node, dict | list):
        return
    for name in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, name
        yield from _places(node[name])
