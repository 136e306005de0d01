"""Sessions of the dashboard: a row in the database, and a cookie that opens it.

A cookie reads `<id>.<text>`: the id finds the row, and the row has the digest of the whole cookie,
sealed with a secret that is not in the database. So a reader of the database has no cookie, and a
copied cookie is refused once its session has ended. A session also ends when its key is revoked,
or replaced under the same name in the settings; what the key may do is read anew for each request.
Every form carries a token that only the session's own pages have.
"""

from __future__ import annotations

import base64
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from towline.dashboard.session_store import SessionStore, StoredSession
from towline.http.auth import Keyring, Principal
from towline.http.signing import SigningSecret
from towline_once.errors import TowlineError, Transient
from towline_once.ports import Clock

SESSION_SECONDS: Final = 12 * 3600
SEEN_SECONDS: Final = 60
"""A session that is used is written at most so often."""
NEWEST: Final = (2**63 - 1, "")
_ID_BYTES: Final = 10
_SECRET_BYTES: Final = 32
_COOKIE: Final = re.compile(r"([0-9a-f]{20})\.[A-Za-z0-9_-]{43}", re.ASCII)
_LONGEST_AGENT: Final = 200
_log = logging.getLogger("towline.auth")


class Session(NamedTuple):
    principal: Principal
    id: str
    expires_us: int


class LiveSession(NamedTuple):
    """A session with the key it belongs to, for lists."""

    principal: Principal
    row: StoredSession


class Sessions:
    def __init__(
        self,
        keyring: Keyring,
        store: SessionStore,
        clock: Clock,
        secret: Callable[[], SigningSecret],
    ) -> None:
        self._keyring = keyring
        self._store = store
        self._clock = clock
        self._secret = secret

    async def begin(self, principal: Principal, address: str = "", agent: str = "") -> str:
        """A new session for a key that was just checked; its cookie."""
        standing = await self._keyring.standing(principal.id)
        if standing is None:
            raise Transient("the key was revoked a moment ago")
        session_id = secrets.token_hex(_ID_BYTES)
        cookie = f"{session_id}.{secrets.token_urlsafe(_SECRET_BYTES)}"
        now = self._clock.now_us()
        end = now + SESSION_SECONDS * 1_000_000
        await self._store.add(
            StoredSession(
                session_id, self._digest(cookie), principal.id, standing.binding, address,
                _printable(agent), now, now, end, None,
            )
        )  # fmt: skip
        return cookie

    async def of(self, cookie: str | None, address: str = "") -> Session | None:
        """None for a cookie that is missing, forged, too old or ended, or whose key was revoked."""
        found = _COOKIE.fullmatch(cookie or "")
        row = await self._store.find(found[1]) if found is not None else None
        if row is None or row.ended_us is not None or row.expires_us <= self._clock.now_us():
            return None
        if not hmac.compare_digest(row.digest, self._digest(cookie or "")):
            return None
        principal = await self._principal_of(row)
        if principal is None:
            return None
        await self._saw(row, address)
        return Session(principal, row.id, row.expires_us)

    async def end(self, session_id: str) -> bool:
        """False if it has ended before, or is not known."""
        return await self._store.end(session_id, self._clock.now_us())

    async def end_others(self, session: Session) -> int:
        """All other sessions of the same key; how many there were."""
        return await self._store.end_others(session.principal.id, session.id, self._clock.now_us())

    async def find(self, session_id: str) -> LiveSession | None:
        """A session that is alive."""
        row = await self._store.find(session_id)
        if row is None or row.ended_us is not None or row.expires_us <= self._clock.now_us():
            return None
        principal = await self._principal_of(row)
        return LiveSession(principal, row) if principal is not None else None

    async def listing(
        self, principal_id: str | None, most: int, before: tuple[int, str] = NEWEST
    ) -> tuple[list[LiveSession], tuple[int, str] | None]:
        """Those that are alive, of one key or of all, and where the next page begins."""
        now = self._clock.now_us()
        rows = await self._store.listing(principal_id, before, now, most + 1)
        owners = [await self._principal_of(row) for row in rows[:most]]
        found = [LiveSession(who, row) for who, row in zip(owners, rows, strict=False) if who]
        last = rows[most - 1] if len(rows) > most else None
        return found, (last.created_us, last.id) if last is not None else None

    async def sweep(self, most: int) -> int:
        """Delete so many that expired; how many there were."""
        return await self._store.sweep(self._clock.now_us(), most)

    async def token(self, about: str) -> str:
        """What forms carry: for a session its id, before one what the visitor's cookie says."""
        return _encoded(self._secret().mac("form", about.encode()))

    async def is_token(self, about: str, given: str) -> bool:
        return hmac.compare_digest((await self.token(about)).encode(), given.encode())

    def _digest(self, cookie: str) -> str:
        return self._secret().mac("session", cookie.encode()).hex()

    async def _principal_of(self, row: StoredSession) -> Principal | None:
        standing = await self._keyring.standing(row.principal)
        if standing is None or not hmac.compare_digest(standing.binding, row.binding):
            return None
        return standing.principal

    async def _saw(self, row: StoredSession, address: str) -> None:
        now = self._clock.now_us()
        if now - row.seen_us < SEEN_SECONDS * 1_000_000:
            return
        try:
            await self._store.saw(row.id, address or row.address, now)
        except TowlineError as error:  # a page may be read while nothing can be written
            _log.info("it is not noted that session %s was used: %s", row.id, error)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:_LONGEST_AGENT])
