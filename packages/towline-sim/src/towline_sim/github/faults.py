"""What can go wrong with a request, before its effect or after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from towline_sim.github.fault_dice import Fault, FaultKind

HttpFaultKind: TypeAlias = Literal[
    "failing", "slow", "silent", "reply_failing", "reply_silent", "truncated"
]


@dataclass(slots=True, kw_only=True)
class HttpFault:
    """`failing` and `silent` strike before the effect, the `reply_` kinds after it.

    It strikes requests of this method whose path begins so, as often as `times` says.
    """

    kind: HttpFaultKind
    path: str = ""
    method: str | None = None
    status: int = 502
    message: str = "Server Error"
    seconds: float = 1.0
    retry_after: int | None = None
    times: int | None = None

    def strikes(self, method: str, path: str) -> bool:
        at_this = path.startswith(self.path) and self.method in (None, method)
        if not at_this or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


_KINDS: Final[dict[FaultKind, HttpFaultKind]] = {
    "error": "failing",
    "limited": "failing",
    "outage": "failing",
    "slow": "slow",
    "silent": "silent",
    "lost_reply": "reply_silent",
}
_STATUS: Final[dict[FaultKind, int]] = {"limited": 429, "outage": 503}
_LIMITED: Final = "You have exceeded a secondary rate limit. Please wait before you try again."


def drawn(fault: Fault | None) -> HttpFault | None:
    """What the dice say, as HTTP has it."""
    if fault is None:
        return None
    limited = fault.kind == "limited"
    return HttpFault(
        kind=_KINDS[fault.kind],
        status=_STATUS.get(fault.kind, 502),
        message=_LIMITED if limited else "Server Error",
        seconds=fault.seconds,
        retry_after=int(fault.seconds) if limited else None,
    )
