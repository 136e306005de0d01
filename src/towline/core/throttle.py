"""The generic cell rate algorithm: one number per key.

That number is the theoretical arrival time: when the next hit would arrive if all hits so far
had come evenly spaced. It may run ahead of the clock by the burst, which is the whole period: so
`limit` hits may come at once, and then one every `period / limit`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_MINUTE_US: Final = 60_000_000


class Rate(NamedTuple):
    interval_us: int
    burst_us: int


class Rates(NamedTuple):
    """How fast deliveries are worked on: of one repository, and of all of its organisation."""

    repo: Rate
    org: Rate | None = None


class Verdict(NamedTuple):
    """Whether a hit may pass; if not, after how many seconds to ask again."""

    allowed: bool
    retry_after: float
    remaining: int


def rate_of(limit: int, per_us: int) -> Rate:
    interval = max(1, per_us // limit)
    return Rate(interval, interval * limit)


def per_minute(repo: int, org: int | None = None) -> Rates:
    return Rates(rate_of(repo, _MINUTE_US), None if org is None else rate_of(org, _MINUTE_US))


def org_of(repo: str) -> str | None:
    """The owner on GitHub, the topmost group on GitLab."""
    owner, slash, _ = repo.partition("/")
    return owner if slash and owner else None


def meters_of(repo: str | None, rates: Rates) -> list[tuple[str, Rate]]:
    """What a delivery of this repository is counted by."""
    if repo is None:
        return []
    meters = [(f"repo:{repo}:webhook:minute", rates.repo)]
    org = org_of(repo)
    if rates.org is not None and org is not None:
        meters.append((f"org:{org}:webhook:minute", rates.org))
    return meters


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
