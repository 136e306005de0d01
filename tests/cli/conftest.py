"""Histories that the simulator made: storms on their own clock, written to SQLite files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.reconciler.tow_storm import Storm, StormClock
from towline.db import database_for

StormInto: TypeAlias = Callable[..., None]


def _storm_into(url: str, seed: int, pulls: int, *, hands: int = 1, deadly: float = 0.0) -> None:
    async def blow() -> None:
        clock = StormClock()
        database = database_for(url, clock)
        await database.connect()
        try:
            storm = Storm(database, clock, seed, pulls, hands=hands, deadly=deadly)
            assert await storm.blow()
        finally:
            await database.aclose()

    asyncio.run(blow())


@pytest.fixture
def storm_into() -> StormInto:
    """Lets a storm of so many pull requests blow, and leaves its history at a URL."""
    return _storm_into


@pytest.fixture(scope="session")
def stormy_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The history of sixty pull requests in a storm; it is only read."""
    url = f"sqlite:///{tmp_path_factory.mktemp('storm') / 'towline.db'}"
    _storm_into(url, seed=4, pulls=60)
    return url
