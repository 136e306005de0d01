"""When a failed job is tried again, and when it is given up.

Only what may pass by itself is tried again. Attempts are counted when a job is claimed, so one
that kills its worker each time comes to an end as well.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_ATTEMPTS: Final = "max_attempts"
DEFINITIVE: Final = "definitive"
LEASE_EXPIRED: Final = "lease_expired"


class Backoff(NamedTuple):
    base_us: int
    max_us: int

    def after(self, attempt: int) -> int:
        """The pause after the given attempt, the first of which is 1; always the same."""
        doublings = min(max(attempt, 1) - 1, 62)
        return min(self.max_us, self.base_us << doublings)


class Verdict(NamedTuple):
    """Queued again after `delay_us`, or dead for `reason`."""

    delay_us: int
    reason: str | None

    @property
    def dead(self) -> bool:
        return self.reason is not None


def after_failure(attempts: int, max_attempts: int, transient: bool, backoff: Backoff) -> Verdict:
    if not transient:
        return Verdict(0, DEFINITIVE)
    if attempts >= max_attempts:
        return Verdict(0, MAX_ATTEMPTS)
    return Verdict(backoff.after(attempts), None)


def after_lost_lease(attempts: int, max_attempts: int) -> Verdict:
    """Its worker died or was cut off: at once to another one, as often as it may."""
    return Verdict(0, LEASE_EXPIRED if attempts >= max_attempts else None)
