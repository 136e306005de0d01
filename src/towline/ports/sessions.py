"""Sessions of the dashboard, as a store keeps them."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StoredSession(NamedTuple):
    """`digest` is that of the cookie, `binding` of what ends the session when it changes."""

    id: str
    digest: str
    principal: str
    binding: str
    address: str
    agent: str
    created_us: int
    seen_us: int
    expires_us: int
    ended_us: int | None


class SessionStore(Protocol):
    async def add(self, session: StoredSession) -> None: ...

    async def find(self, session_id: str) -> StoredSession | None: ...

    async def saw(self, session_id: str, address: str, now_us: int) -> None:
        """Note that a session was used, unless it has ended."""
        ...

    async def end(self, session_id: str, now_us: int) -> bool:
        """False if it has ended before, or is not known."""
        ...

    async def end_others(self, principal: str, but: str, now_us: int) -> int:
        """End all sessions of this principal but one; how many there were."""
        ...

    async def listing(
        self, principal: str | None, before: tuple[int, str], now_us: int, most: int
    ) -> list[StoredSession]:
        """Those that are alive, the newest first, of one principal or of all."""
        ...

    async def sweep(self, now_us: int, most: int) -> int:
        """Delete so many that expired; how many there were."""
        ...
