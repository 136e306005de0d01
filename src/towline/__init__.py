"""Towline: never acts twice on the same event.

The names below are the library; they are loaded when first used, so that importing towline
costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from towline.coordination.breaker import Permit as Permit
    from towline.coordination.lease import Lease as Lease
    from towline.core import keys as keys
    from towline.core.canonical import payload_hash as payload_hash
    from towline.core.failures import Failure as Failure
    from towline.core.failures import Pattern as Pattern
    from towline.core.failures import classify_failure as classify_failure
    from towline.core.throttle import Verdict as Verdict
    from towline.errors import Closed as Closed
    from towline.errors import Conflict as Conflict
    from towline.errors import Definitive as Definitive
    from towline.errors import Exhausted as Exhausted
    from towline.errors import Forked as Forked
    from towline.errors import Indeterminate as Indeterminate
    from towline.errors import InFlight as InFlight
    from towline.errors import KeyCollision as KeyCollision
    from towline.errors import LeaseLost as LeaseLost
    from towline.errors import LockTimeout as LockTimeout
    from towline.errors import MissingExtra as MissingExtra
    from towline.errors import NoSlot as NoSlot
    from towline.errors import Rejected as Rejected
    from towline.errors import Stale as Stale
    from towline.errors import StoreFull as StoreFull
    from towline.errors import TowlineError as TowlineError
    from towline.errors import Transient as Transient
    from towline.errors import Unavailable as Unavailable
    from towline.errors import WrongLoop as WrongLoop
    from towline.idempotency.views import Claim as Claim
    from towline.idempotency.views import Handled as Handled
    from towline.idempotency.views import Outcome as Outcome
    from towline.idempotency.views import Record as Record
    from towline.idempotency.views import Tombstone as Tombstone
    from towline.library import Breaker as Breaker
    from towline.library import Dedup as Dedup
    from towline.library import Idempotency as Idempotency
    from towline.library import Locks as Locks
    from towline.library import RateLimit as RateLimit
    from towline.library import Slots as Slots
    from towline.library import create_dedup as create_dedup
    from towline.library import create_lock as create_lock
    from towline.ports.coordination import DeduplicationStore as DeduplicationStore
    from towline.ports.coordination import DistributedLock as DistributedLock
    from towline.store.entra import connect_redis as connect_redis
    from towline.web.idempotency import IdempotencyMiddleware as IdempotencyMiddleware

__version__ = "0.1.0"

_HOMES = {
    "towline.core": ["keys"],
    "towline.core.canonical": ["payload_hash"],
    "towline.errors": [
        "Closed", "Conflict", "Definitive", "Exhausted", "Forked", "InFlight", "Indeterminate",
        "KeyCollision", "LeaseLost", "LockTimeout", "MissingExtra", "NoSlot", "Rejected", "Stale",
        "StoreFull", "TowlineError", "Transient", "Unavailable", "WrongLoop",
    ],
    "towline.idempotency.views": ["Claim", "Handled", "Outcome", "Record", "Tombstone"],
    "towline.core.failures": ["Failure", "Pattern", "classify_failure"],
    "towline.core.throttle": ["Verdict"],
    "towline.coordination.breaker": ["Permit"],
    "towline.coordination.lease": ["Lease"],
    "towline.library": [
        "Breaker", "Dedup", "Idempotency", "Locks", "RateLimit", "Slots",
        "create_dedup", "create_lock",
    ],
    "towline.ports.coordination": ["DeduplicationStore", "DistributedLock"],
    "towline.store.entra": ["connect_redis"],
    "towline.web.idempotency": ["IdempotencyMiddleware"],
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'towline' has no attribute {name!r}")
    home = import_module(_HOME[name])
    value = getattr(home, name, None) or import_module(f"{_HOME[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
