"""Rate limits by the generic cell rate algorithm, on the store's clock.

`RateLimit` uses it, and so does the inbox for what webhooks may start. It needs one number per key,
where a sliding window needs one per hit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from towline_once.arguments import at_least_one, microseconds, name_of
from towline_once.loop_guard import LoopGuard
from towline_once.ports import RateStore

# ------------------------------------------------------------------ the algorithm
# The generic cell rate algorithm: one number per key.
#
# That number is the theoretical arrival time: when the next hit would arrive if all hits so far had
# come evenly spaced. It may run ahead of the clock by the burst, which is the whole period: so
# `limit` hits may come at once, and then one every `period / limit`.
#
# Two uses differ in one thing. A limiter (`pace`) refuses a hit without room, and the number stands
# still. A queue (`turns`) takes every hit, and the number moves on: the k-th hit without room has
# its turn after k intervals, however many requests and processes the hits come from.

_MINUTE_US: Final = 60_000_000
_FLOOD: Final = 3_000


class Rate(NamedTuple):
    interval_us: int
    burst_us: int


class Rates(NamedTuple):
    """How fast the deliveries of a repository may start fix runs, and how fast they may come."""

    repo: Rate
    """Of the fix runs that events of one repository start."""
    org: Rate | None = None
    """Of those of all repositories of an organisation."""
    flood: Rate = Rate(_MINUTE_US // _FLOOD, _MINUTE_US // _FLOOD * _FLOOD)
    """Of all deliveries of one repository."""


class Start(NamedTuple):
    """A fix run that a delivery asks for, and that counts by the rate of its repository."""

    run_key: str
    repo: str


class Verdict(NamedTuple):
    """Whether a hit may pass; if not, after how many seconds to ask again."""

    allowed: bool
    retry_after: float
    remaining: int


def rate_of(limit: int, per_us: int) -> Rate:
    interval = max(1, per_us // limit)
    return Rate(interval, interval * limit)


def per_minute(repo: int, org: int | None = None, flood: int = _FLOOD) -> Rates:
    organisation = None if org is None else rate_of(org, _MINUTE_US)
    return Rates(rate_of(repo, _MINUTE_US), organisation, rate_of(flood, _MINUTE_US))


def org_of(repo: str) -> str | None:
    """The owner on GitHub, the topmost group on GitLab."""
    owner, slash, _ = repo.partition("/")
    return owner if slash and owner else None


def meters_of(start: Start, rates: Rates) -> list[tuple[str, Rate]]:
    """The meters that count a fix run."""
    meters = [(f"repo:{start.repo}:webhook:minute", rates.repo)]
    org = org_of(start.repo)
    if rates.org is not None and org is not None:
        meters.append((f"org:{org}:webhook:minute", rates.org))
    return meters


def flood_meter(repo: str | None, urgent: bool) -> str | None:
    """The meter that counts a delivery of this repository; what a person says is not counted."""
    return None if repo is None or urgent else f"repo:{repo}:webhook:flood"


def turns(arrival: int, now: int, hits: int, rate: Rate) -> list[int]:
    """How long each of these hits waits for its turn, given the arrival time after all of them."""
    before = arrival - hits * rate.interval_us - rate.burst_us - now
    return [max(0, before + place * rate.interval_us) for place in range(1, hits + 1)]


def pace(arrival: int, now: int, hits: int, interval_us: int, burst_us: int) -> tuple[int, int]:
    """How many of the hits fit, and the arrival time after them."""
    start = max(arrival, now)
    fitting = max(0, (now + burst_us - start) // interval_us)
    allowed = min(hits, fitting)
    return allowed, start + allowed * interval_us if allowed else arrival


def verdict(allowed: bool, arrival: int, now: int, rate: Rate) -> Verdict:
    """What to tell one caller, given the arrival time after its hit."""
    ahead = max(arrival, now) - now
    room = rate.burst_us - ahead
    remaining = max(0, room // rate.interval_us)
    wait = 0.0 if allowed else max(0.0, (rate.interval_us - room) / 1e6)
    return Verdict(allowed, wait, remaining)


# ------------------------------------------------------------------ the service

_HITS_BETWEEN_SWEEPS = 1_000
_SWEEP_BATCH = 1_250
"""More than can come between two sweeps, lest they pile up."""


class RateLimitService:
    """Allows so many hits per period, by key. `RateLimit.open` gives one."""

    def __init__(self, rates: RateStore, guard: LoopGuard | None = None) -> None:
        self._guard = guard or LoopGuard()
        self._rates = rates
        self._hits = 0

    async def hit(self, key: str, limit: int, per_seconds: float) -> Verdict:
        """Count one hit if it fits.

        Parameters:
            key: names what is limited.
            limit: hits that may come at once, and in each period.
            per_seconds: the period.

        Returns: a `Verdict`: `allowed`; `retry_after`, seconds until the next hit fits;
        `remaining`.

        Raises: `Rejected` for an argument out of range, `Unavailable` if the store does not answer.

        Guarantees: the clock of the store counts, so that processes on several machines agree. A
        refused hit does not count.

        ```python
        async with towline_once.RateLimit.open("memory://") as limits:
            assert (await limits.hit("user-7", limit=1, per_seconds=60)).allowed
            refused = await limits.hit("user-7", limit=1, per_seconds=60)
            assert not refused.allowed and 59 < refused.retry_after <= 60
        ```
        """
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
