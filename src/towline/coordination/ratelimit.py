"""Rate limits by the generic cell rate algorithm, on the store's clock."""

from __future__ import annotations

from towline.coordination.checks import at_least_one, microseconds, name_of
from towline.core.throttle import Verdict, rate_of, verdict
from towline.loop_guard import LoopGuard
from towline.ports.coordination import RateStore

_HITS_BETWEEN_SWEEPS = 1_000
_SWEEP_BATCH = 1_250
"""More than can come between two sweeps, lest they pile up."""


class RateLimitService:
    def __init__(self, rates: RateStore, guard: LoopGuard | None = None) -> None:
        self._guard = guard or LoopGuard()
        self._rates = rates
        self._hits = 0

    async def hit(self, key: str, limit: int, per_seconds: float) -> Verdict:
        """Count one hit if it fits: `limit` at once, then evenly over `per_seconds`."""
        self._guard.check("RateLimit")
        name = name_of(key, "a rate limit's key")
        rate = rate_of(at_least_one("limit", limit), microseconds("per_seconds", per_seconds))
        paced = await self._rates.hit(name, 1, rate.interval_us, rate.burst_us)
        self._hits += 1
        if self._hits % _HITS_BETWEEN_SWEEPS == 0:
            await self._rates.sweep(_SWEEP_BATCH)
        return verdict(paced.allowed > 0, paced.arrival_us, paced.now, rate)

    async def aclose(self) -> None:
        return None
