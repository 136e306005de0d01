"""Redis over Entra ID, with a token service that we play and a Redis that checks its tokens."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from redis.auth.idp import IdentityProviderInterface
from redis.auth.token import SimpleToken

from tests.servers import RedisServer, redis_command
from towline_once.db.redis.entra import connect_redis
from towline_once.errors import MissingExtra, Rejected, Unavailable

PATIENCE = 10.0
USER = "5f2b0c1e-oid"


class TokenService(IdentityProviderInterface):
    """Issues tokens and, as Azure does, makes the Redis accept them."""

    def __init__(self, server: RedisServer) -> None:
        self._url = server.url
        self.life_seconds = 3600.0
        self.user: str | None = USER
        self.failing = 0
        self.issued: list[str] = []
        self._issues: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.silence: threading.Event | None = None

    def request_token(self, force_refresh: bool = False) -> SimpleToken:
        if self.silence is not None:
            self.silence.wait(PATIENCE)
        if self.failing:
            self.failing -= 1
            raise OSError("the token service is away")
        value = f"token-{len(self.issued)}"
        self._accept_only(value)
        self.issued.append(value)
        self._loop.call_soon_threadsafe(self._issues.put_nowait, value)
        now_ms = time.time() * 1000
        claims = {} if self.user is None else {"oid": self.user}
        return SimpleToken(value, now_ms + self.life_seconds * 1000, now_ms, claims)

    async def issues(self, value: str) -> None:
        """Wait until this token has been issued."""
        async with asyncio.timeout(PATIENCE):
            while await self._issues.get() != value:
                pass

    def _accept_only(self, value: str) -> None:
        rights = ("~*", "&*", "+@all")
        redis_command(self._url, "ACL", "SETUSER", USER, "on", "resetpass", f">{value}", *rights)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def service(server: RedisServer) -> TokenService:
    return TokenService(server)


async def test_the_token_is_the_password_of_its_owner(
    server: RedisServer, service: TokenService
) -> None:
    """The user's name is the token's oid."""
    redis = connect_redis(server.host, server.port, ssl=False, identity_provider=service)
    assert await redis.call("ACL", "WHOAMI") == USER
    assert service.issued == ["token-0"]
    await redis.aclose()


async def test_a_renewed_token_is_presented_on_the_live_connection(
    server: RedisServer, service: TokenService
) -> None:
    """The server sees AUTH again on the same connection, before the token expires."""
    service.life_seconds = 0.3
    redis = connect_redis(server.host, server.port, ssl=False, identity_provider=service)
    connected_as = await redis.call("CLIENT", "ID")
    await service.issues("token-2")
    stats: str = await redis.call("INFO", "commandstats")
    assert await redis.call("CLIENT", "ID") == connected_as
    assert "cmdstat_auth:calls=" in stats
    assert "failed_calls=0" in next(
        line for line in stats.splitlines() if line.startswith("cmdstat_auth")
    )
    await redis.aclose()


async def test_a_renewal_that_fails_is_tried_again(
    server: RedisServer, service: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never dies silently."""
    monkeypatch.setattr("towline_once.db.redis.entra._FIRST_RETRY", 0.01)
    service.life_seconds = 0.2
    redis = connect_redis(server.host, server.port, ssl=False, identity_provider=service)
    await redis.connect()
    service.failing = 2
    await service.issues("token-1")
    assert service.failing == 0
    assert await redis.call("PING") == "PONG"
    await redis.aclose()


async def test_a_dropped_login_is_replaced(server: RedisServer, service: TokenService) -> None:
    """When the server ends our sessions, the next call fetches a token and succeeds."""
    redis = connect_redis(server.host, server.port, ssl=False, identity_provider=service)
    await redis.connect()
    call = asyncio.ensure_future(redis.call("BLPOP", "never", 0))
    await asyncio.sleep(0)
    redis_command(server.url, "CLIENT", "KILL", "USER", USER)
    with pytest.raises(Unavailable):
        await call
    assert service.issued == ["token-0"]
    assert await redis.call("ACL", "WHOAMI") == USER
    await redis.aclose()


async def test_a_token_service_that_is_away_is_transient(
    server: RedisServer, service: TokenService
) -> None:
    """The next attempt may succeed."""
    service.failing = 1
    redis = connect_redis(server.host, server.port, ssl=False, identity_provider=service)
    with pytest.raises(Unavailable, match="token service is away"):
        await redis.connect()
    await redis.connect()
    await redis.aclose()


async def test_a_silent_token_service_ends_by_the_deadline(
    server: RedisServer, service: TokenService
) -> None:
    """It is asked on a thread, under the deadline of the call."""
    service.silence = threading.Event()
    redis = connect_redis(
        server.host, server.port, ssl=False, identity_provider=service, timeout=0.2
    )
    with pytest.raises(Unavailable, match="did not answer"):
        await redis.connect()
    service.silence.set()
    await redis.aclose()


async def test_a_token_without_an_owner_is_rejected(
    server: RedisServer, service: TokenService
) -> None:
    """The sentence names the claim that is missing."""
    service.user = None
    redis = connect_redis(server.host, server.port, ssl=False, identity_provider=service)
    with pytest.raises(Rejected, match="oid"):
        await redis.connect()
    await redis.aclose()


async def test_an_expired_token_is_not_used(server: RedisServer, service: TokenService) -> None:
    """A token service with a wrong clock is told apart from a wrong password."""
    service.life_seconds = -1
    redis = connect_redis(server.host, server.port, ssl=False, identity_provider=service)
    with pytest.raises(Unavailable, match="already expired"):
        await redis.connect()
    await redis.aclose()


def test_the_environments_identity_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of it before the first use; TLS is the default."""
    monkeypatch.setenv("AZURE_CLIENT_ID", "11111111-2222-3333-4444-555555555555")
    redis = connect_redis("cache.example", azure_client_id="aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
    assert (str(redis.address), redis.address.database) == ("cache.example:6380", 0)
    assert redis.address.tls
    assert not redis.address.allow_eviction


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "redis_entraid.identity_provider", None)
    with pytest.raises(MissingExtra, match=r"pip install 'towline\[entra\]'"):
        connect_redis("cache.example")
