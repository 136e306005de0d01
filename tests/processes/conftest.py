"""Each store that several processes can share, and a crew of processes to share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.crew import Crew


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """Each backend that lives outside of a process, empty."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as hands:
        yield hands
