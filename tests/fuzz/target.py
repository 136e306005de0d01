"""What a fuzz target is: bytes in, and a contract that must hold whatever they are.

A check calls a parser of ours. It returns, or the parser raises what its documentation allows, with
a message that is one short line and holds no secret. Anything else that leaves it is a finding, and
so is more processor time than any input of this size deserves.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tests.forges.samples import SECRET, SIGNING_SECRET

LONGEST_SECONDS: Final = 2.0
"""Of processor time; a hundred times what the largest sound input takes."""
LONGEST_INPUT: Final = 40_000
LONGEST_MESSAGE: Final = 1000
TOKEN: Final = "tow_secret00_of-the-fuzzers-own-0123456789abcdef"
"""The credential that clients of forges get."""
SECRETS: Final = (SECRET, SIGNING_SECRET, TOKEN)
"""What no message may repeat."""
SEPARATOR: Final = b"\x1e"
"""Parts the bytes of a target that takes several texts."""


class Target(NamedTuple):
    name: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    """Inputs to start from, sound ones above all."""
    words: tuple[bytes, ...] = ()
    """What the parser looks for, so that a fuzzer need not guess it."""


def run(target: Target, data: bytes) -> None:
    """Play one input; an `AssertionError`, or whatever the parser let out, is a finding."""
    data = data[:LONGEST_INPUT]
    began = time.process_time()
    target.check(data)
    took = time.process_time() - began
    assert took < LONGEST_SECONDS, f"{target.name} took {took:.1f} s for {len(data)} bytes"


@contextlib.contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Let these errors pass, once their message is seen to be fit for a line of a log."""
    said = None
    try:
        yield
    except kinds as error:
        said = str(error)
    if said is not None:
        check_message(said)


def check_message(said: str) -> None:
    assert said, "a refusal says why"
    assert len(said) <= LONGEST_MESSAGE, f"a message of {len(said)} characters"
    assert "\n" not in said, "a message is one line"
    assert not any(secret in said for secret in SECRETS), "a message repeats a secret"


def text_of(data: bytes) -> str:
    """Any text at all: what is not UTF-8 becomes lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def sound_text_of(data: bytes) -> str:
    """Text as it comes out of a decoder that replaces what it cannot read."""
    return data.decode("utf-8", "replace")


def parts_of(data: bytes, count: int) -> list[bytes]:
    """Exactly so many parts; the last has the rest, and missing ones are empty."""
    found = data.split(SEPARATOR, count - 1)
    return found + [b""] * (count - len(found))


def joined(*parts: bytes) -> bytes:
    return SEPARATOR.join(parts)
