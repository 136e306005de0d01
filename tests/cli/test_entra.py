"""The service on a Redis with Microsoft Entra ID: its identity's endpoint, its TLS, its refusals.

We play the endpoint of managed identities, which hands out tokens over HTTP, and Azure, which
makes Redis accept them; the libraries in between are the real ones.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.certificates import self_signed
from tests.servers import LOOPBACK, RedisServer, redis_command
from towline.app.service import Service
from towline.config import Settings
from towline.doctor.servers import look_at_redis
from towline_once.errors import MissingExtra, Rejected

USER = "5f2b0c1e-oid"
CLIENT = "1c4d-client"
DEADLINE = 20.0


class Identity:
    """Hands out tokens for one client, and has Redis accept the newest."""

    def __init__(self, redis: RedisServer) -> None:
        self._redis_url = redis.url
        self.asked: list[dict[str, list[str]]] = []
        self.tokens: list[str] = []
        self.has_access = True
        identity = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                identity.asked.append(parse_qs(urlsplit(self.path).query))
                body = json.dumps(identity._token()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                return None

        self.server = HTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self.server.server_port}/token"

    def _token(self) -> dict[str, str]:
        now = int(time.time())
        claims = {"oid": USER, "aud": "redis", "iat": now, "exp": now + 3600}
        token = ".".join((_part({"alg": "HS256", "typ": "JWT"}), _part(claims), _part({"s": 1})))
        self.tokens.append(token)
        if self.has_access:
            rights = ("~*", "&*", "+@all")
            redis_command(
                self._redis_url, "ACL", "SETUSER", USER, "on", "resetpass", f">{token}", *rights
            )
        return {
            "access_token": token, "expires_on": str(now + 3600), "resource": "redis",
            "token_type": "Bearer",
        }  # fmt: skip


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def identity(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Identity]:
    """As an app service has it, by the environment."""
    played = Identity(redis)
    thread = threading.Thread(target=played.server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("IDENTITY_ENDPOINT", played.url)
    monkeypatch.setenv("IDENTITY_HEADER", "secret")
    yield played
    played.server.shutdown()
    played.server.server_close()
    thread.join(DEADLINE)


@pytest.fixture
async def tls_port(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[int]:
    """Redis behind TLS, with a certificate that is trusted here."""
    certificate = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(redis.host, redis.port)
        with contextlib.suppress(asyncio.CancelledError):  # at the end of the test
            await asyncio.gather(_pump(reader, ahead), _pump(behind, writer))

    async with await asyncio.start_server(forward, LOOPBACK, 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    finally:
        target.close()


def settings(port: int, **more: Any) -> Settings:
    given = {"redis_host": LOOPBACK, "redis_port": port, "azure_client_id": CLIENT, **more}
    return Settings.model_validate({"database_url": "sqlite:///:memory:", **given})


async def test_the_service_keeps_its_locks_there(
    redis: RedisServer, identity: Identity, tls_port: int
) -> None:
    """It asks for a token of the client that is set, and logs in with it, over TLS."""
    service = Service(settings(tls_port, state_backend="redis"))
    async with asyncio.timeout(DEADLINE):
        await service.open()
        async with service._locks.acquire("repo"):
            assert redis_command(redis.url, "EXISTS", "towline:lease:repo") == b":1"
        await service.close()
    assert identity.asked[0]["client_id"] == [CLIENT]
    assert identity.asked[0]["resource"] == ["https://redis.azure.com"]


async def test_the_doctor_logs_in_the_same_way(identity: Identity, tls_port: int) -> None:
    """What it finds is about that Redis."""
    found = await look_at_redis(settings(tls_port, state_backend="redis"), DEADLINE)
    assert any(f"{LOOPBACK}:{tls_port}" in str(finding) for finding in found)
    assert identity.asked[0]["client_id"] == [CLIENT]


async def test_an_identity_without_access_is_one_clear_error(
    identity: Identity, tls_port: int
) -> None:
    """The service does not start, and the token is not shown."""
    identity.has_access = False
    service = Service(settings(tls_port, state_backend="redis"))
    with pytest.raises(Rejected, match="refused our credentials") as refused:
        await service.open()
    assert identity.tokens[0] not in str(refused.value)
    await service.close()


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is opened."""
    monkeypatch.setitem(sys.modules, "redis_entraid.identity_provider", None)
    with pytest.raises(MissingExtra, match=r"pip install 'towline\[entra\]'"):
        Service(settings(6380, state_backend="redis"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redis_host", "rediss://cache.example.com"),
        ("redis_host", "cache.example.com:6380"),
        ("redis_host", "user@cache"),
        ("redis_host", ""),
        ("redis_port", 0),
        ("redis_port", 65_536),
        ("azure_client_id", ""),
    ],
)
def test_a_bad_value_is_refused(name: str, value: object) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=name):
        Settings.model_validate({"redis_host": "cache", name: value})
