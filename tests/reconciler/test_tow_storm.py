"""Two hundred pull requests through the worst weather there is, with the world as the witness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.reconciler.tow_audit import audit
from tests.reconciler.tow_storm import REPOS, Storm, StormClock
from towline.db import database_for
from towline_once.db.statement import Database

MakeStorm = Callable[..., Storm]


@pytest.fixture
async def make_storm(sqlite_url: str) -> AsyncIterator[MakeStorm]:
    clock = StormClock()
    database: Database = database_for(sqlite_url, clock)
    await database.connect()

    def make(seed: int, **how: float) -> Storm:
        return Storm(database, clock, seed, **how)  # type: ignore[arg-type]

    yield make
    await database.aclose()


def all_pulls(storm: Storm) -> int:
    return sum(len(storm.world.pulls(repo, state="all")) for repo in REPOS)


@pytest.mark.parametrize(("seed", "hands"), [(1, 1), (2, 1), (3, 4)])
async def test_all_end_for_the_right_reason(make_storm: MakeStorm, seed: int, hands: int) -> None:
    """Merged, closed or with a person, each once and within its budgets, as the world confirms."""
    storm = make_storm(seed, hands=hands)
    assert await storm.blow()
    await storm.calm()
    assert await audit(storm) == []
    census = await storm.pulls.census()
    assert storm.deliveries.lost > storm.deliveries.told * 0.3
    assert storm.deliveries.duplicated > storm.deliveries.told * 0.05
    assert {"error", "limited", "lost_reply", "silent"} <= set(storm.forge_faults.counts)
    assert census["MERGED"] > 80
    assert census["CLOSED"] > 5
    assert census["NEEDS_INTERVENTION"] > 20
    assert sum(census.values()) > all_pulls(storm) * 0.85


@pytest.mark.parametrize(("seed", "hands"), [(4, 1), (5, 4)])
async def test_so_they_do_though_the_process_dies_again_and_again(
    make_storm: MakeStorm, seed: int, hands: int
) -> None:
    """A kill at any call to the store or the forge, before or after it, changes none of that."""
    storm = make_storm(seed, hands=hands, deadly=0.002)
    assert await storm.blow()
    await storm.calm()
    assert storm.died > 20
    assert await audit(storm) == []
