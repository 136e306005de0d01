"""A clock that the test moves, and an idempotency handle on each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.clocks import ManualClock
from towline import Idempotency


@pytest.fixture
async def idem(backend_url: str, clock: ManualClock) -> AsyncIterator[Idempotency]:
    async with Idempotency.open(backend_url, clock=clock) as handle:
        yield handle
