"""Who is signed in: a cookie that is signed, and says whose key was shown and until when.

It is signed with a secret of the database and the digest of that key together. So a session ends
by itself when its key is revoked, or replaced under the same name in the settings; what the key
may do is read anew for each request. Every form carries a token that only the session's own pages
have.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import deque
from typing import Final, NamedTuple

import orjson

from towline.errors import Transient
from towline.ports.clock import Clock
from towline.ports.coordination import DocumentStore
from towline.web.auth import Keyring, Principal

SESSION_SECONDS: Final = 12 * 3600
_DOCUMENT: Final = "dashboard secret"
_SECRET_BYTES: Final = 32
_LONGEST_COOKIE: Final = 1024
_CONTENTION_ROUNDS: Final = 16
_MOST_ADDRESSES: Final = 1024


class Session(NamedTuple):
    principal: Principal
    nonce: str
    expires_us: int


class Sessions:
    def __init__(self, keyring: Keyring, documents: DocumentStore, clock: Clock) -> None:
        self._keyring = keyring
        self._documents = documents
        self._clock = clock
        self._secret: bytes | None = None

    async def begin(self, principal: Principal) -> str:
        """The cookie of somebody whose key was just checked."""
        claims = {
            "id": principal.id,
            "until": self._clock.now_us() + SESSION_SECONDS * 1_000_000,
            "nonce": secrets.token_urlsafe(16),
        }
        body = _encoded(orjson.dumps(claims))
        signature = await self._signature(principal.id, body)
        if signature is None:
            raise Transient("the key was revoked a moment ago")
        return f"{body}.{signature}"

    async def of(self, cookie: str | None) -> Session | None:
        """None for a cookie that is missing, forged, too old, or of a key that is no more."""
        body, _, signature = (cookie or "")[:_LONGEST_COOKIE].partition(".")
        claims = _claims(body)
        if claims is None or claims.until <= self._clock.now_us():
            return None
        expected = await self._signature(claims.id, body)
        if expected is None or not hmac.compare_digest(expected.encode(), signature.encode()):
            return None
        standing = await self._keyring.standing(claims.id)
        if standing is None:
            return None
        return Session(standing.principal, claims.nonce, claims.until)

    async def token(self, about: str) -> str:
        """What forms carry: for a session its nonce, before one what the visitor's cookie says."""
        return _mac(await self._own_secret(), f"form {about}")

    async def is_token(self, about: str, given: str) -> bool:
        return hmac.compare_digest((await self.token(about)).encode(), given.encode())

    async def _signature(self, principal_id: str, body: str) -> str | None:
        standing = await self._keyring.standing(principal_id)
        if standing is None:
            return None
        return _mac(_mac(await self._own_secret(), standing.digest).encode(), f"session {body}")

    async def _own_secret(self) -> bytes:
        """The same for every process on the database; whoever comes first makes it."""
        for _ in range(_CONTENTION_ROUNDS):
            if self._secret is not None:
                return self._secret
            document = await self._documents.read(_DOCUMENT)
            if document.body:
                self._secret = bytes.fromhex(document.body)
            else:
                fresh = secrets.token_hex(_SECRET_BYTES)
                await self._documents.swap(_DOCUMENT, document.version, fresh)
        raise Transient("the dashboard's secret cannot be read")


def _mac(key: bytes, text: str) -> str:
    return _encoded(hmac.new(key, text.encode(), hashlib.sha256).digest())


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class _Claims(NamedTuple):
    id: str
    until: int
    nonce: str


def _claims(body: str) -> _Claims | None:
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        found = orjson.loads(raw)
        claims = _Claims(found["id"], found["until"], found["nonce"])
    except (ValueError, KeyError, TypeError):
        return None
    wanted = (str, int, str)
    fits = all(isinstance(one, kind) for one, kind in zip(claims, wanted, strict=True))
    return claims if fits else None


class Attempts:
    """Bounds how often somebody may try keys: so many refusals a minute, from one address."""

    def __init__(self, clock: Clock, most: int = 10, seconds: float = 60.0) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._failed: dict[str, deque[float]] = {}

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; zero if it may now."""
        failed = self._failed.get(address)
        now = self._clock.monotonic()
        while failed and failed[0] <= now - self._seconds:
            failed.popleft()
        if not failed or len(failed) < self._most:
            return 0.0
        return failed[0] + self._seconds - now

    def count(self, address: str) -> None:
        failed = self._failed.pop(address, None) or deque(maxlen=self._most)
        failed.append(self._clock.monotonic())
        while len(self._failed) >= _MOST_ADDRESSES:
            del self._failed[next(iter(self._failed))]
        self._failed[address] = failed
