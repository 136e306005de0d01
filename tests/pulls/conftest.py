"""Pull requests under tow behind real HTTP, on each SQL store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.http.asgi_client import serving
from tests.pulls.tow_plane import AS_DEPUTY, TowPlane, tow_plane_on


@pytest.fixture
async def plane(sql_url: str) -> AsyncIterator[TowPlane]:
    """Each SQL backend in turn."""
    async with tow_plane_on(sql_url) as opened:
        yield opened


@pytest.fixture
async def client(plane: TowPlane) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who may look and order."""
    async with serving(plane.app()) as opened:
        opened.headers.update(AS_DEPUTY)
        yield opened


@pytest.fixture
async def local(sqlite_url: str) -> AsyncIterator[TowPlane]:
    """A store for what does not depend on it."""
    async with tow_plane_on(sqlite_url) as opened:
        yield opened
