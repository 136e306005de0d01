"""Who is asking: API keys from the settings and from the store, each with its scopes.

A key comes as `Authorization: Bearer …` or `X-API-Key: …`. Those of the settings are compared with
every request in constant time. Those of the store are found by their prefix and then compared in
constant time; what was found is kept for a few seconds, which is how long a revoked key lives on.
Wrong keys are slowed (`attempts.py`). No log line and no answer carries a key: at most the prefix,
which opens nothing.

The store has a digest that is sealed with a secret of this process (`http/signing.py`). A plain
digest of an earlier version is sealed when its key is next used.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from towline.http.key_attempts import NO_PROXIES, Attempts, Proxies
from towline.http.key_store import ApiKeyStore, NewKey, StoredKey
from towline.http.key_text import (
    PREFIX_LENGTH,
    PREFIX_LETTERS,
    allows,
    checked_name,
    checked_scopes,
    compose,
    is_of,
    is_prefix,
    is_sealed,
    plain_digest,
    prefix_of,
    sealed,
    sealed_elsewhere,
)
from towline.http.signing import SigningSecret
from towline_once.asgi.messages import Problem, Scope
from towline_once.errors import TowlineError, Transient
from towline_once.ports import Clock

KEPT_SECONDS: Final = 5.0
_MOST_KEPT: Final = 1024
_RETRY_SECONDS: Final = 5.0
_ADDING_TRIES: Final = 5
_SECRET_BYTES: Final = 32
_BEGINNING: Final = 8

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
    """A key that is valid now; `binding` is another one once the key's text is another one."""

    principal: Principal
    binding: str


class _Seen(NamedTuple):
    until: float
    key: StoredKey | None


class Keyring:
    """Checks keys; `given` are those of the settings, by name."""

    def __init__(
        self,
        store: ApiKeyStore,
        clock: Clock,
        given: Mapping[str, GivenKey],
        secret: Callable[[], SigningSecret],
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        self._store = store
        self._clock = clock
        self._given = [
            (_digest_of_given(key), Principal(f"settings:{name}", name, frozenset(key.scopes)))
            for name, key in given.items()
        ]
        self._secret = secret
        self._attempts = Attempts(clock)
        self._proxies = proxies
        self._seen: dict[str, _Seen] = {}

    async def check(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        scope: str | None,
        peer: str | None = None,
    ) -> Principal:
        """Who is asking, if they may; else a `Problem`.

        `headers` are those of ASGI, `peer` is the address at the other end of the connection.
        Without a `scope` any key will do.
        """
        headers = list(headers)
        text = _key_in(headers)
        address = self.client_of(headers, peer)
        principal = await self._tried(text, address)
        if scope is not None and not allows(principal.scopes, scope):
            _log.info("key %s lacks the scope %s", principal.id, scope)
            held = ", ".join(sorted(principal.scopes))
            raise Problem(403, "forbidden", f"this needs the scope {scope}; the key has {held}")
        return principal

    def client_of(self, headers: Iterable[tuple[bytes, bytes]], peer: str | None) -> str:
        """The address of the client, also behind a proxy that the settings trust."""
        return self._proxies.client_of(headers, peer)

    async def standing(self, principal_id: str) -> Standing | None:
        """Whose key this is and what it may do now; None if it is revoked, changed away or unknown.

        It is for a caller that has shown the key before, and proves that by other means.
        """
        for digest, principal in self._given:
            if principal.id == principal_id:
                binding = self._secret().mac("key of the settings", digest.encode()).hex()
                return Standing(principal, binding)
        if not is_prefix(principal_id):
            return None
        key = await self._look_up(principal_id)
        if key is None or key.revoked_us is not None:
            return None
        return Standing(Principal(key.prefix, key.name, frozenset(key.scopes)), key.prefix)

    async def ensure_one(self) -> str | None:
        """Where there is no key at all, make one that may do everything; its text, once."""
        if self._given:
            return None
        made, new = _made("first", ("admin",), self._secret())
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

    async def _among_stored(self, text: bytes) -> Principal | str:
        """The owner of this key, or why it opens nothing."""
        prefix = prefix_of(text)
        key = await self._look_up(prefix) if prefix is not None else None
        if key is None:
            return "unknown"
        secret = self._secret()
        if sealed_elsewhere(key.digest, secret):
            _log.warning(
                "key %s was made under another secret than this process has (%s): set the same "
                "serve.secret (TOWLINE_SERVE__SECRET) everywhere, or make a new key",
                key.prefix,
                secret.where,
            )
            return "made under another secret"
        if not is_of(key.digest, text, secret):
            return "unknown"
        if key.revoked_us is not None:
            return "revoked"
        if not is_sealed(key.digest):
            await self._seal(key, text)
        return Principal(key.prefix, key.name, frozenset(key.scopes))

    async def _tried(self, text: bytes, address: str) -> Principal:
        """As often as may be tried from there."""
        prefix = prefix_of(text)
        beginning = prefix.encode() if prefix is not None else b"?" + text[:_BEGINNING]
        wait = self._attempts.wait(address, beginning)
        if wait:
            raise _too_many(wait)
        found = self._among_given(plain_digest(text)) or await self._among_stored(text)
        if isinstance(found, Principal):
            return found
        _log.info("key %s refused: %s", prefix or "without a prefix", found)
        wait = self._attempts.failed(address, beginning)
        if wait:
            raise _too_many(wait)
        raise _unauthorized("the key is not valid")

    async def _seal(self, key: StoredKey, text: bytes) -> None:
        """A key of an earlier version; where it cannot be written now, the next use does it."""
        digest = sealed(text, self._secret())
        try:
            changed = await self._store.reseal(key.prefix, key.digest, digest)
        except TowlineError as error:
            _log.info("the digest of key %s is not sealed yet: %s", key.prefix, error)
            return
        self._seen.pop(key.prefix, None)
        if changed:
            _log.info("the digest of key %s is sealed now", key.prefix)

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


async def make_key(
    store: ApiKeyStore, name: str, scopes: Sequence[str], secret: SigningSecret
) -> MadeKey:
    """Make a key and keep its digest; `Rejected` if its name or scopes are not allowed."""
    name, scopes = checked_name(name), checked_scopes(scopes)
    for _ in range(_ADDING_TRIES):
        made, new = _made(name, scopes, secret)
        if await store.add(new):
            return made
    raise Transient("no prefix is free for a new key")


def _made(name: str, scopes: Sequence[str], secret: SigningSecret) -> tuple[MadeKey, NewKey]:
    prefix = "".join(secrets.choice(PREFIX_LETTERS) for _ in range(PREFIX_LENGTH))
    text = compose(prefix, secrets.token_urlsafe(_SECRET_BYTES))
    return MadeKey(text, prefix), NewKey(prefix, sealed(text.encode(), secret), name, tuple(scopes))


def _digest_of_given(key: GivenKey) -> str:
    return plain_digest(key.key.strip().encode())


def peer_of(scope: Scope) -> str | None:
    """The address at the other end of the connection, if it has one."""
    client = scope.get("client")
    return str(client[0]) if client else None


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


def _too_many(wait: float) -> Problem:
    detail = "too many wrong keys from this address; try again later"
    return Problem(429, "too_many_attempts", detail).retry_after(wait)


def _unauthorized(detail: str) -> Problem:
    problem = Problem(401, "unauthorized", detail)
    problem.headers.append((b"www-authenticate", b"Bearer"))
    return problem


def _store_unavailable() -> Problem:
    problem = Problem(503, "store_unavailable", "the key cannot be checked now; try again later")
    return problem.retry_after(_RETRY_SECONDS)
