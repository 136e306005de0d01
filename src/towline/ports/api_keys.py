"""API keys: a prefix to find them by, a digest to know them by; never the key itself."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol


class NewKey(NamedTuple):
    prefix: str
    digest: str
    """As `core.api_keys.sealed` makes it."""
    name: str
    scopes: tuple[str, ...]


class StoredKey(NamedTuple):
    prefix: str
    digest: str
    name: str
    scopes: tuple[str, ...]
    created_us: int
    revoked_us: int | None


class ApiKeyStore(Protocol):
    async def add(self, key: NewKey) -> bool:
        """Keep the key; False if another one has its prefix."""
        ...

    async def add_first(self, key: NewKey) -> bool:
        """Keep the key unless there is one that is not revoked, also if many try at once."""
        ...

    def find(self, prefix: str) -> Awaitable[StoredKey | None]:
        """The key with this prefix, revoked or not."""
        ...

    async def listing(self) -> list[StoredKey]:
        """All keys, the oldest first, with those that are revoked."""
        ...

    async def revoke(self, prefix: str) -> StoredKey | None:
        """End the key now, or leave the end it has; None if there is no such key."""
        ...

    async def reseal(self, prefix: str, old: str, new: str) -> bool:
        """Replace the digest; False if it is not the old one any more."""
        ...
