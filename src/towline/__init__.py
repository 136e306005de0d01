"""Towline: every event to at most one effect. The library's names are here, too.

Its names are loaded when first used, so that importing it costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from towline_once import Breaker as Breaker
    from towline_once import Claim as Claim
    from towline_once import Closed as Closed
    from towline_once import Conflict as Conflict
    from towline_once import Dedup as Dedup
    from towline_once import DeduplicationStore as DeduplicationStore
    from towline_once import Definitive as Definitive
    from towline_once import DistributedLock as DistributedLock
    from towline_once import Exhausted as Exhausted
    from towline_once import Failure as Failure
    from towline_once import Forked as Forked
    from towline_once import Handled as Handled
    from towline_once import Idempotency as Idempotency
    from towline_once import IdempotencyMiddleware as IdempotencyMiddleware
    from towline_once import Indeterminate as Indeterminate
    from towline_once import InFlight as InFlight
    from towline_once import KeyCollision as KeyCollision
    from towline_once import Lease as Lease
    from towline_once import LeaseLost as LeaseLost
    from towline_once import Locks as Locks
    from towline_once import LockTimeout as LockTimeout
    from towline_once import MissingExtra as MissingExtra
    from towline_once import NoSlot as NoSlot
    from towline_once import Outcome as Outcome
    from towline_once import Pattern as Pattern
    from towline_once import Permit as Permit
    from towline_once import RateLimit as RateLimit
    from towline_once import Record as Record
    from towline_once import Rejected as Rejected
    from towline_once import Slots as Slots
    from towline_once import Stale as Stale
    from towline_once import StoreFull as StoreFull
    from towline_once import Tombstone as Tombstone
    from towline_once import TowlineError as TowlineError
    from towline_once import Transient as Transient
    from towline_once import Unavailable as Unavailable
    from towline_once import Verdict as Verdict
    from towline_once import WrongLoop as WrongLoop
    from towline_once import classify_failure as classify_failure
    from towline_once import connect_redis as connect_redis
    from towline_once import create_dedup as create_dedup
    from towline_once import create_lock as create_lock
    from towline_once import keys as keys
    from towline_once import payload_hash as payload_hash

__version__ = "0.1.0"

_HOMES = {
    "towline_once": [
        "Breaker",
        "Claim",
        "Closed",
        "Conflict",
        "Dedup",
        "DeduplicationStore",
        "Definitive",
        "DistributedLock",
        "Exhausted",
        "Failure",
        "Forked",
        "Handled",
        "Idempotency",
        "IdempotencyMiddleware",
        "InFlight",
        "Indeterminate",
        "KeyCollision",
        "Lease",
        "LeaseLost",
        "LockTimeout",
        "Locks",
        "MissingExtra",
        "NoSlot",
        "Outcome",
        "Pattern",
        "Permit",
        "RateLimit",
        "Record",
        "Rejected",
        "Slots",
        "Stale",
        "StoreFull",
        "Tombstone",
        "TowlineError",
        "Transient",
        "Unavailable",
        "Verdict",
        "WrongLoop",
        "classify_failure",
        "connect_redis",
        "create_dedup",
        "create_lock",
        "keys",
        "payload_hash",
    ],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'towline' has no attribute {name!r}")
    home = _HOME[name]
    value = (
        import_module(f"{home}.{name}") if home == __name__ else getattr(import_module(home), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
