"""Every parser of foreign bytes keeps its contract, on seeds, on what once broke it, and bent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz import answering, targets_redis
from tests.fuzz.mutations import inputs
from tests.fuzz.target import Target, run
from tests.fuzz.targets import TARGETS
from tests.sizes import size

CASES: Final = Path(__file__).parent / "cases"
PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "fuzzing.md"
EXAMPLES: Final = size(25, 300)
PUMP: Final = 20_000
PUMPED: Final = (b" ", b"a", b"\n", b"[", b"/", b"0", b"a ", b"\t\n", b'"')
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    """The servers and the clients that targets share."""
    yield
    answering.close()
    targets_redis.close()


def cases_of(target: Target) -> list[bytes]:
    """Inputs that broke a parser once."""
    return [file.read_bytes() for file in sorted((CASES / target.name).glob("*"))]


@each_target
def test_what_is_sound_and_what_broke_it_once(target: Target) -> None:
    """All seeds and all kept cases are read, or refused as the parser says."""
    for data in [*target.seeds(), *cases_of(target)]:
        run(target, data)


@pytest.mark.full_size
@each_target
def test_any_bytes(target: Target) -> None:
    """Bent seeds, strung words and plain bytes; the same ones each time, so that the gate is."""
    seeds = [*target.seeds(), *cases_of(target)]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(target, seeds))
    def played(data: bytes) -> None:
        run(target, data)

    played()


@pytest.mark.slow
@each_target
def test_no_input_takes_long(target: Target) -> None:
    """A word thousands of times over, alone and within a sound input, is dealt with in no time."""
    seed = next(iter(target.seeds()), b"")
    middle = len(seed) // 2
    for word in (*target.words, *PUMPED):
        run(target, word * (PUMP // len(word)))
        run(target, seed[:middle] + word * (PUMP // len(word)) + b"!" + seed[middle:])


def test_every_case_belongs_to_a_target() -> None:
    """A folder of cases whose target was renamed would never be played again."""
    assert {folder.name for folder in CASES.iterdir() if folder.is_dir()} <= TARGETS.keys()


def test_the_page_lists_every_target() -> None:
    """What is fuzzed, and nothing else, stands in the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in TARGETS if f"`{name}`" not in text] == []
