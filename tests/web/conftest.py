"""Stores for tests that need no server."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["memory", "sqlite"])
def local_url(request: pytest.FixtureRequest) -> str:
    """Each of the two stores that live in this process."""
    if request.param == "memory":
        return "memory://"
    url: str = request.getfixturevalue("sqlite_url")
    return url
