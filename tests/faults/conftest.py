"""PostgreSQL and Redis in turn, each behind a proxy that fails on command."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.faults.far import CountingProxy, Far
from tests.servers import at_port


@pytest.fixture(params=["postgres", "redis"])
async def far(request: pytest.FixtureRequest) -> AsyncIterator[Far]:
    url = request.getfixturevalue(f"{request.param}_url")
    server = request.getfixturevalue(f"{request.param}_server")
    async with CountingProxy(server.host, server.port) as proxy:
        yield Far(at_port(url, proxy.port), url, proxy, server)
