"""Redis with Microsoft Entra ID: short-lived tokens instead of a password.

`redis-entraid` gets the tokens. It is asked on a thread, because it blocks. A token is renewed
after seven tenths of its life and presented on the live connection, so the server never drops us.
If the service does not answer then, we ask again until it does.

The streaming provider of `redis-entraid` is not used: it blocks the event loop while it asks, and
one renewal that fails ends all later ones, which only shows when the token has expired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from towline_once.clock import SystemClock
from towline_once.errors import MissingExtra, Rejected, Unavailable
from towline_once.ports import Clock

_MISSING = "Redis with Entra ID credentials needs an extra: pip install 'towline[entra]'"

try:
    from redis.auth.idp import IdentityProviderInterface
    from redis.auth.token import TokenInterface

    from towline_once.db.redis.client import Redis
except (ModuleNotFoundError, MissingExtra) as missing:
    raise MissingExtra(_MISSING) from missing

_SCOPE = "https://redis.azure.com/.default"
_RENEW_AT = 0.7
_SHORTEST_PAUSE, _FIRST_RETRY, _LONGEST_RETRY = 0.1, 1.0, 30.0

_log = logging.getLogger("towline.store")


def connect_redis(
    host: str,
    port: int = 6380,
    *,
    azure_client_id: str | None = None,
    ssl: bool = True,
    database: int = 0,
    allow_eviction: bool = False,
    timeout: float = 5.0,
    clock: Clock | None = None,
    identity_provider: IdentityProviderInterface | None = None,
) -> Redis:
    """Return a Redis that signs in with Microsoft Entra ID; it connects at its first use.

    Pass it to any `open` in place of a URL. The identity is the environment's
    (`DefaultAzureCredential`): workload or managed identity.

    Parameters:
        host, port, ssl, database: where the Redis is.
        azure_client_id: which managed identity, where there are several.
        allow_eviction: accept a Redis that may evict keys.
        timeout: seconds within which each call ends.
        clock: a clock for tests.
        identity_provider: another source of tokens.

    Raises: `MissingExtra` without the extra `entra`, `Rejected` for a wrong address.

    ```python
    # needs Azure
    redis = towline_once.connect_redis(host="cache.example", port=6380)
    async with towline_once.Locks.open(redis) as locks:
        pass
    ```
    """
    clock = clock or SystemClock()
    url = "rediss://" if ssl else "redis://"
    url += f"[{host}]" if ":" in host else host
    url += f":{port}/{database}" + ("?allow_eviction=1" if allow_eviction else "")
    provider = identity_provider or _of_the_environment(azure_client_id)
    return Redis(url, clock=clock, timeout=timeout, credentials=EntraCredentials(provider, clock))


def _of_the_environment(azure_client_id: str | None) -> IdentityProviderInterface:
    try:
        from azure.identity import DefaultAzureCredential
        from redis_entraid.identity_provider import DefaultAzureCredentialProvider
    except ModuleNotFoundError as missing:
        raise MissingExtra(_MISSING) from missing
    # Passed as None, the id would hide AZURE_CLIENT_ID of the environment.
    chosen = {"managed_identity_client_id": azure_client_id} if azure_client_id else {}
    provider: IdentityProviderInterface = DefaultAzureCredentialProvider(
        DefaultAzureCredential(**chosen), (_SCOPE,)
    )
    return provider


class EntraCredentials:
    def __init__(self, provider: IdentityProviderInterface, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._renewed: Callable[[str, str], None] | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def get(self) -> tuple[str, str]:
        token = await self._request(force=False)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(self._keep_fresh(token))
        return _user_of(token), token.get_value()

    def on_renewal(self, renewed: Callable[[str, str], None]) -> None:
        self._renewed = renewed

    async def aclose(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)

    async def _request(self, *, force: bool) -> TokenInterface:
        try:
            token = await asyncio.to_thread(self._provider.request_token, force)
        except Exception as error:
            raise Unavailable(f"Entra ID gave no token: {error}") from error
        if self._seconds_left(token) <= 0:
            raise Unavailable("Entra ID gave a token that has already expired")
        return token

    def _seconds_left(self, token: TokenInterface) -> float:
        return token.get_expires_at_ms() / 1e3 - self._clock.now_us() / 1e6

    async def _keep_fresh(self, token: TokenInterface) -> None:
        retry = _FIRST_RETRY
        pause = self._seconds_left(token) * _RENEW_AT
        while True:
            await asyncio.sleep(max(pause, _SHORTEST_PAUSE))
            try:
                fresh = await self._request(force=True)
                if fresh.get_value() != token.get_value() and self._renewed is not None:
                    self._renewed(_user_of(fresh), fresh.get_value())
            except (Rejected, Unavailable) as error:
                _log.warning("the Redis token was not renewed, trying again: %s", error)
                pause, retry = retry, min(2 * retry, _LONGEST_RETRY)
            else:
                token, retry = fresh, _FIRST_RETRY
                pause = self._seconds_left(token) * _RENEW_AT


def _user_of(token: TokenInterface) -> str:
    user = token.try_get("oid")
    if not user:
        raise Rejected("the Entra ID token has no oid claim, which is the Redis user's name")
    return user
