"""GitHub's rate limits: so many requests an hour, and secondary limits on bursts and writes.

The primary limit is a window that starts with the first request. The secondary limits look back
over the last minute and hour. A request that is refused costs nothing, and so does one that is
answered by 304: `give_back` returns it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

from towline_sim.github.problems import Problem

Resource: TypeAlias = Literal["core", "graphql"]

_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 3600 * _SECOND
_PLENTY: Final = 10**9
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_POINTS_OF_A_WRITE: Final = 5
_SECONDARY: Final = (
    "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
)


class Limits(NamedTuple):
    """What one token may do; the numbers are GitHub's."""

    per_hour: int = 5000
    graphql_per_hour: int = 5000
    points_per_minute: int = 900
    writes_per_minute: int = 80
    writes_per_hour: int = 500
    concurrent: int = 100
    status: int = 403
    """What a refusal is answered with; GitHub sends 403 or 429."""

    @classmethod
    def none(cls) -> Limits:
        return cls(_PLENTY, _PLENTY, _PLENTY, _PLENTY, _PLENTY, _PLENTY)


@dataclass
class Lately:
    """How much there was within the last `span_us`."""

    span_us: int
    total: int = 0
    entries: deque[tuple[int, int]] = field(default_factory=deque)

    def amount(self, now_us: int) -> int:
        while self.entries and self.entries[0][0] <= now_us - self.span_us:
            self.total -= self.entries.popleft()[1]
        return self.total

    def add(self, amount: int, now_us: int) -> None:
        self.entries.append((now_us, amount))
        self.total += amount

    def seconds_left(self, now_us: int) -> int:
        """Until the oldest of it is forgotten."""
        oldest = self.entries[0][0] if self.entries else now_us
        return max(1, -(-(oldest + self.span_us - now_us) // _SECOND))


@dataclass
class Window:
    """A primary limit of one token."""

    limit: int
    since_us: int
    used: int = 0

    @property
    def reset(self) -> int:
        return (self.since_us + _HOUR) // _SECOND

    def shown(self) -> dict[str, int]:
        left = max(0, self.limit - self.used)
        return {"limit": self.limit, "remaining": left, "reset": self.reset, "used": self.used}

    def headers(self, resource: Resource) -> dict[str, str]:
        shown = {f"x-ratelimit-{name}": str(value) for name, value in self.shown().items()}
        return shown | {"x-ratelimit-resource": resource}


@dataclass
class Meter:
    """What one token has used up."""

    limits: Limits
    windows: dict[Resource, Window] = field(default_factory=dict)
    running: int = 0
    """Requests that have come and are not answered yet."""
    points: Lately = field(default_factory=lambda: Lately(_MINUTE))
    writes: Lately = field(default_factory=lambda: Lately(_MINUTE))
    writes_of_hour: Lately = field(default_factory=lambda: Lately(_HOUR))

    def window(self, resource: Resource, now_us: int) -> Window:
        limit = self.limits.per_hour if resource == "core" else self.limits.graphql_per_hour
        known = self.windows.get(resource)
        if known is None or now_us >= known.since_us + _HOUR:
            known = self.windows[resource] = Window(limit, now_us)
        return known

    def charge(self, method: str, resource: Resource, now_us: int, cost: int = 1) -> None:
        """Count this request, or refuse it; `Problem` says when to come again."""
        self._check_secondary(method, resource, now_us)
        window = self.window(resource, now_us)
        if window.used + cost > window.limit:
            raise Problem(self.limits.status, "API rate limit exceeded for this user.")
        window.used += cost
        points = _points(method, resource)
        self.points.add(points, now_us)
        if points > 1:
            self.writes.add(1, now_us)
            self.writes_of_hour.add(1, now_us)

    def give_back(self, resource: Resource, now_us: int) -> None:
        window = self.window(resource, now_us)
        window.used = max(0, window.used - 1)

    def overview(self, now_us: int) -> dict[str, Any]:
        core = self.window("core", now_us).shown()
        graphql = self.window("graphql", now_us).shown()
        search = {"limit": 30, "remaining": 30, "reset": now_us // _SECOND + 60, "used": 0}
        return {"resources": {"core": core, "graphql": graphql, "search": search}, "rate": core}

    def _check_secondary(self, method: str, resource: Resource, now_us: int) -> None:
        if self.running > self.limits.concurrent:
            self._refuse(1)
        points = _points(method, resource)
        self._check(self.points, points, self.limits.points_per_minute, now_us)
        if points > 1:
            self._check(self.writes, 1, self.limits.writes_per_minute, now_us)
            self._check(self.writes_of_hour, 1, self.limits.writes_per_hour, now_us)

    def _check(self, lately: Lately, more: int, limit: int, now_us: int) -> None:
        if lately.amount(now_us) + more > limit:
            self._refuse(lately.seconds_left(now_us))

    def _refuse(self, seconds: int) -> NoReturn:
        raise Problem(self.limits.status, _SECONDARY, headers={"retry-after": str(seconds)})


def _points(method: str, resource: Resource) -> int:
    reads = method in _READING or resource == "graphql"
    return 1 if reads else _POINTS_OF_A_WRITE
