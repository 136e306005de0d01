"""A store of each kind, empty, for what keeps them in lockstep."""

from __future__ import annotations

import pytest


@pytest.fixture
def every_url(sqlite_url: str, postgres_url: str, redis_url: str) -> list[str]:
    return ["memory://", sqlite_url, postgres_url, redis_url]
