"""Who is asking: API keys from the settings and from the store, each with its scopes.

A key comes as `Authorization: Bearer …` or `X-API-Key: …`. Those of the settings are compared with
every request in constant time. Those of the store are found by their prefix and then compared in
constant time; what was found is kept for a few seconds, which is how long a revoked key lives on.
No log line and no answer carries a key: at most the prefix, which opens nothing.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from towline.core.api_keys import (
    PREFIX_LENGTH,
    PREFIX_LETTERS,
    allows,
    checked_name,
    checked_scopes,
    compose,
    digest_of,
    is_prefix,
    prefix_of,
)
from towline.errors import TowlineError, Transient
from towline.ports.api_keys import ApiKeyStore, NewKey, StoredKey
from towline.ports.clock import Clock
from towline.web.answers import Problem

KEPT_SECONDS: Final = 5.0
_MOST_KEPT: Final = 1024
_RETRY_SECONDS: Final = 5.0
_ADDING_TRIES: Final = 5
_SECRET_BYTES: Final = 32

_log = logging.getLogger("towline.auth")


class GivenKey(Protocol):
    """A key as the settings have it."""

    @property
    def key(self) -> str: ...

    @property
    def scopes(self) -> Sequence[str]: ...


class Principal(NamedTuple):
    """Whose key it is. `id` never stands for two: the key's prefix, or `settings:NAME`."""

    id: str
    name: str
    scopes: frozenset[str]


class MadeKey(NamedTuple):
    """A new key; nothing but this has its text."""

    text: str
    prefix: str


class Standing(NamedTuple):
    """A key that is valid now; the digest is for what is bound to its text, and for nobody else."""

    principal: Principal
    digest: str


class _Seen(NamedTuple):
    until: float
    key: StoredKey | None


class Keyring:
    """Checks keys; `given` are those of the settings, by name."""

    def __init__(self, store: ApiKeyStore, clock: Clock, given: Mapping[str, GivenKey]) -> None:
        self._store = store
        self._clock = clock
        self._given = [
            (_digest_of_given(key), Principal(f"settings:{name}", name, frozenset(key.scopes)))
            for name, key in given.items()
        ]
        self._seen: dict[str, _Seen] = {}

    async def check(self, headers: Iterable[tuple[bytes, bytes]], scope: str) -> Principal:
        """Who is asking, if they may; else a `Problem`. `headers` are those of ASGI."""
        principal = await self.identify(headers)
        if not allows(principal.scopes, scope):
            _log.info("key %s lacks the scope %s", principal.id, scope)
            held = ", ".join(sorted(principal.scopes))
            raise Problem(403, "forbidden", f"this needs the scope {scope}; the key has {held}")
        return principal

    async def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """Who is asking, whatever they may do; else a `Problem`."""
        text = _key_in(headers)
        digest = digest_of(text)
        return self._among_given(digest) or await self._among_stored(text, digest)

    async def standing(self, principal_id: str) -> Standing | None:
        """Whose key this is and what it may do now; None if it is revoked, changed away or unknown.

        It is for somebody who has shown the key before, and proves that by other means.
        """
        for digest, principal in self._given:
            if principal.id == principal_id:
                return Standing(principal, digest)
        if not is_prefix(principal_id):
            return None
        key = await self._look_up(principal_id)
        if key is None or key.revoked_us is not None:
            return None
        return Standing(Principal(key.prefix, key.name, frozenset(key.scopes)), key.digest)

    async def ensure_one(self) -> str | None:
        """Where there is no key at all, make one that may do everything; its text, once."""
        if self._given:
            return None
        made, new = _made("first", ("admin",))
        if not await self._store.add_first(new):
            return None
        _log.info("there was no key, so one was made: %s", made.prefix)
        return made.text

    async def has_one(self) -> bool:
        """Whether anybody has a key that still works."""
        if self._given:
            return True
        return any(key.revoked_us is None for key in await self._store.listing())

    def _among_given(self, digest: str) -> Principal | None:
        """All are compared, so that the time taken does not tell which one was close."""
        found = None
        for known, principal in self._given:
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    async def _among_stored(self, text: bytes, digest: str) -> Principal:
        prefix = prefix_of(text)
        key = await self._look_up(prefix) if prefix is not None else None
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise _refused(prefix, "unknown")
        if key.revoked_us is not None:
            raise _refused(prefix, "revoked")
        return Principal(key.prefix, key.name, frozenset(key.scopes))

    async def _look_up(self, prefix: str) -> StoredKey | None:
        now = self._clock.monotonic()
        seen = self._seen.get(prefix)
        if seen is not None and now < seen.until:
            return seen.key
        try:
            key = await self._store.find(prefix)
        except TowlineError as error:
            _log.warning("no key can be looked up: %s", error)
            raise _store_unavailable() from error
        self._keep(prefix, _Seen(now + KEPT_SECONDS, key))
        return key

    def _keep(self, prefix: str, seen: _Seen) -> None:
        self._seen.pop(prefix, None)
        while len(self._seen) >= _MOST_KEPT:
            del self._seen[next(iter(self._seen))]
        self._seen[prefix] = seen


async def make_key(store: ApiKeyStore, name: str, scopes: Sequence[str]) -> MadeKey:
    """Make a key and keep its digest; `Rejected` if its name or scopes are not allowed."""
    name, scopes = checked_name(name), checked_scopes(scopes)
    for _ in range(_ADDING_TRIES):
        made, new = _made(name, scopes)
        if await store.add(new):
            return made
    raise Transient("no prefix is free for a new key")


def _made(name: str, scopes: Sequence[str]) -> tuple[MadeKey, NewKey]:
    prefix = "".join(secrets.choice(PREFIX_LETTERS) for _ in range(PREFIX_LENGTH))
    text = compose(prefix, secrets.token_urlsafe(_SECRET_BYTES))
    return MadeKey(text, prefix), NewKey(prefix, digest_of(text.encode()), name, tuple(scopes))


def _digest_of_given(key: GivenKey) -> str:
    return digest_of(key.key.strip().encode())


def _key_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    found = {text for name, value in headers if (text := _key_of_header(name, value))}
    if len(found) > 1:
        raise _unauthorized("the request carries two different keys")
    if not found:
        raise _unauthorized("a key is needed: Authorization: Bearer … or X-API-Key: …")
    return found.pop()


def _key_of_header(name: bytes, value: bytes) -> bytes:
    if name == b"x-api-key":
        return value.strip()
    if name == b"authorization":
        scheme, _, rest = value.strip().partition(b" ")
        return rest.strip() if scheme.lower() == b"bearer" else b""
    return b""


def _refused(prefix: str | None, why: str) -> Problem:
    _log.info("key %s refused: %s", prefix or "without a prefix", why)
    return _unauthorized("the key is not valid")


def _unauthorized(detail: str) -> Problem:
    problem = Problem(401, "unauthorized", detail)
    problem.headers.append((b"www-authenticate", b"Bearer"))
    return problem


def _store_unavailable() -> Problem:
    problem = Problem(503, "store_unavailable", "the key cannot be checked now; try again later")
    return problem.retry_after(_RETRY_SECONDS)
