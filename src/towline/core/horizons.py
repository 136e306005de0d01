"""How long a sender may deliver the same thing again.

A record that ends earlier lets the late delivery act a second time.
"""

from __future__ import annotations

from collections.abc import Collection

from towline.core.keys import SCHEMES
from towline.errors import Rejected

REDELIVERY_SECONDS = {
    "github": 3 * 86_400,
    "gitlab": 76 * 3_600,
    "slack": 300,
}
"""GitHub keeps its delivery log for 3 days (Enterprise Server for 7: set the TTL to that)."""


def check_horizons(sources: Collection[str], seconds: float, name: str = "completed_ttl") -> None:
    """Refuse a time to live that ends before a sender's last redelivery."""
    for source in sources:
        if source not in SCHEMES:
            raise Rejected(f"unknown source {source!r}; known are {', '.join(sorted(SCHEMES))}")
        horizon = REDELIVERY_SECONDS.get(source, 0)
        if seconds < horizon:
            raise Rejected(
                f"{name} of {seconds:g} s is too short for {source}, which may "
                f"redeliver for {horizon} s: a late delivery would act twice"
            )
