"""The once-only library.

Its names are loaded when first used, so that importing it costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from towline_once import keys as keys
    from towline_once.asgi.middleware import IdempotencyMiddleware as IdempotencyMiddleware
    from towline_once.canonical_json import payload_hash as payload_hash
    from towline_once.coordination.circuit_breaker import Permit as Permit
    from towline_once.coordination.lease import Lease as Lease
    from towline_once.coordination.rate_limit import Verdict as Verdict
    from towline_once.db.redis.entra import connect_redis as connect_redis
    from towline_once.errors import Closed as Closed
    from towline_once.errors import Conflict as Conflict
    from towline_once.errors import Definitive as Definitive
    from towline_once.errors import Exhausted as Exhausted
    from towline_once.errors import Forked as Forked
    from towline_once.errors import Indeterminate as Indeterminate
    from towline_once.errors import InFlight as InFlight
    from towline_once.errors import KeyCollision as KeyCollision
    from towline_once.errors import LeaseLost as LeaseLost
    from towline_once.errors import LockTimeout as LockTimeout
    from towline_once.errors import MissingExtra as MissingExtra
    from towline_once.errors import NoSlot as NoSlot
    from towline_once.errors import Rejected as Rejected
    from towline_once.errors import Stale as Stale
    from towline_once.errors import StoreFull as StoreFull
    from towline_once.errors import TowlineError as TowlineError
    from towline_once.errors import Transient as Transient
    from towline_once.errors import Unavailable as Unavailable
    from towline_once.errors import WrongLoop as WrongLoop
    from towline_once.failure_patterns import Pattern as Pattern
    from towline_once.failures import Failure as Failure
    from towline_once.failures import classify_failure as classify_failure
    from towline_once.handles import Breaker as Breaker
    from towline_once.handles import Dedup as Dedup
    from towline_once.handles import Idempotency as Idempotency
    from towline_once.handles import Locks as Locks
    from towline_once.handles import RateLimit as RateLimit
    from towline_once.handles import Slots as Slots
    from towline_once.handles import create_dedup as create_dedup
    from towline_once.handles import create_lock as create_lock
    from towline_once.idempotency.types import Claim as Claim
    from towline_once.idempotency.types import Handled as Handled
    from towline_once.idempotency.types import Outcome as Outcome
    from towline_once.idempotency.types import Record as Record
    from towline_once.idempotency.types import Tombstone as Tombstone
    from towline_once.ports import DeduplicationStore as DeduplicationStore
    from towline_once.ports import DistributedLock as DistributedLock

__version__ = "0.1.0"

_HOMES = {
    "towline_once": [
        "keys",
    ],
    "towline_once.asgi.middleware": [
        "IdempotencyMiddleware",
    ],
    "towline_once.canonical_json": [
        "payload_hash",
    ],
    "towline_once.coordination.circuit_breaker": [
        "Permit",
    ],
    "towline_once.coordination.lease": [
        "Lease",
    ],
    "towline_once.coordination.rate_limit": [
        "Verdict",
    ],
    "towline_once.db.redis.entra": [
        "connect_redis",
    ],
    "towline_once.errors": [
        "Closed",
        "Conflict",
        "Definitive",
        "Exhausted",
        "Forked",
        "InFlight",
        "Indeterminate",
        "KeyCollision",
        "LeaseLost",
        "LockTimeout",
        "MissingExtra",
        "NoSlot",
        "Rejected",
        "Stale",
        "StoreFull",
        "TowlineError",
        "Transient",
        "Unavailable",
        "WrongLoop",
    ],
    "towline_once.failure_patterns": [
        "Pattern",
    ],
    "towline_once.failures": [
        "Failure",
        "classify_failure",
    ],
    "towline_once.handles": [
        "Breaker",
        "Dedup",
        "Idempotency",
        "Locks",
        "RateLimit",
        "Slots",
        "create_dedup",
        "create_lock",
    ],
    "towline_once.idempotency.types": [
        "Claim",
        "Handled",
        "Outcome",
        "Record",
        "Tombstone",
    ],
    "towline_once.ports": [
        "DeduplicationStore",
        "DistributedLock",
    ],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'towline_once' has no attribute {name!r}")
    home = _HOME[name]
    value = (
        import_module(f"{home}.{name}") if home == __name__ else getattr(import_module(home), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
