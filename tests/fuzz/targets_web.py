"""Requests: the bytes of the front door's own HTTP path, keys, payloads, forms, cursors."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request

from tests.clocks import ManualClock
from tests.forges.samples import SIGNERS
from tests.fuzz.connection import methods_in, replies_in, said_to
from tests.fuzz.target import TOKEN, Target, check_message, joined, parts_of, refusing, text_of
from towline.dashboard.fleet import place_in
from towline.dashboard.page_request import form_of
from towline.dashboard.session import Sessions
from towline.dashboard.session_store import StoredSession
from towline.http.auth import Keyring, Principal
from towline.http.key_store import NewKey, StoredKey
from towline.http.key_text import SCOPES
from towline.http.signing import SigningSecret
from towline.pulls.fleet import BadCursor
from towline_once.asgi import exchange
from towline_once.asgi.messages import Message, Problem

_GENUINE: Final = f"tow_abcdefgh_{hashlib.sha256(TOKEN.encode()).hexdigest()}"
_SECRET: Final = SigningSecret(b"a secret that no input of the fuzzer has", "that of the tests")
_EXPECTED: Final = frozenset({100, 200, 202, 400, 401, 404, 405, 408, 421, 429, 431, 413, 503})


def http_requests(data: bytes) -> None:
    """Whatever is sent, well-formed answers come back, and the same ones in whatever pieces."""
    methods, readable = methods_in(data)
    whole = replies_in(said_to([data]), methods)
    assert {reply.status for reply in whole} <= _EXPECTED
    for reply in whole:
        check_message(reply.body.decode().replace("\n", " ") or "-")
    size = max(1, len(data) // 7)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    parted = replies_in(said_to(pieces), methods)
    if readable:
        assert [one.status for one in parted] == [one.status for one in whole]


def idempotency_keys(data: bytes) -> None:
    """A key is taken as it is meant, or refused; a payload counts by its value."""
    key, cookie, kind, body = parts_of(data, 4)
    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": text_of(key), "query_string": cookie,
        "headers": [(b"idempotency-key", key), (b"cookie", cookie), (b"content-type", kind)],
    }  # fmt: skip
    with refusing(Problem):
        found = exchange.key_of(scope, [b"idempotency-key"])
        assert found is None or (1 <= len(found) <= exchange.LONGEST_KEY and found.isprintable())
    assert exchange.tenant_of({**scope, "user": "ann"}, exchange.by_user) == "user:ann"
    assert " " not in exchange.endpoint_of(scope).removeprefix("POST ")
    assert exchange.payload_of(scope, body) == exchange.payload_of(scope, body)


class _Keys(NamedTuple):
    """A store with one key."""

    kept: StoredKey

    async def find(self, prefix: str) -> StoredKey | None:
        return self.kept if prefix == self.kept.prefix else None

    async def add(self, key: NewKey) -> bool:
        return False

    async def add_first(self, key: NewKey) -> bool:
        return False

    async def listing(self) -> list[StoredKey]:
        return [self.kept]

    async def revoke(self, prefix: str) -> StoredKey | None:
        return None

    async def reseal(self, prefix: str, old: str, new: str) -> bool:
        return False


class _Rows(NamedTuple):
    """Sessions in memory."""

    kept: dict[str, StoredSession]

    async def add(self, session: StoredSession) -> None:
        self.kept[session.id] = session

    async def find(self, session_id: str) -> StoredSession | None:
        return self.kept.get(session_id)

    async def saw(self, session_id: str, address: str, now_us: int) -> None:
        return None

    async def end(self, session_id: str, now_us: int) -> bool:
        return False

    async def end_others(self, principal: str, but: str, now_us: int) -> int:
        return 0

    async def listing(
        self, principal: str | None, before: tuple[int, str], now_us: int, most: int
    ) -> list[StoredSession]:
        return list(self.kept.values())

    async def sweep(self, now_us: int, most: int) -> int:
        return 0


class _House(NamedTuple):
    keyring: Keyring
    sessions: Sessions
    cookie: str
    form_token: str


@cache
def _house() -> _House:
    """Of one key, whose owner is signed in."""
    clock = ManualClock()
    digest = hashlib.sha256(_GENUINE.encode()).hexdigest()
    stored = StoredKey("abcdefgh", digest, "octocat", SCOPES, 1, None)
    keyring = Keyring(_Keys(stored), clock, {}, lambda: _SECRET)
    sessions = Sessions(keyring, _Rows({}), clock, lambda: _SECRET)
    owner = Principal("abcdefgh", "octocat", frozenset(SCOPES))

    async def opened() -> _House:
        cookie = await sessions.begin(owner)
        return _House(keyring, sessions, cookie, await sessions.token("nonce"))

    return asyncio.run(opened())


def credentials(data: bytes) -> None:
    """Nobody gets in without the key."""
    name, value, more = parts_of(data, 3)
    headers = [(name.strip().lower(), value), (b"x-api-key", more)]
    keyring = _house().keyring

    async def asked() -> None:
        with refusing(Problem):
            who = await keyring.check(headers, "read")
            assert _GENUINE.encode() in value + more, f"{who} got in without the key"

    asyncio.run(asked())


def cookies(data: bytes) -> None:
    """Only the cookie that was given out opens a session, and only its own token a form."""
    cookie, token = (part.decode("latin-1") for part in parts_of(data, 2))
    house = _house()

    async def shown() -> None:
        session = await house.sessions.of(cookie)
        assert session is None or cookie == house.cookie
        assert not await house.sessions.is_token("nonce", token) or token == house.form_token

    asyncio.run(shown())


def forms(data: bytes) -> None:
    """A form of the dashboard is read as texts, or refused with a problem."""
    kind, body = parts_of(data, 2)
    sent: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind)]}

    async def receive() -> Message:
        return next(sent, {"type": "http.disconnect"})

    async def read(form: Awaitable[Mapping[str, str]]) -> None:
        with refusing(Problem):
            found = await form
            assert all(value.encode() is not None for value in found.values())

    asyncio.run(read(form_of(Request(scope, receive))))


def cursors(data: bytes) -> None:
    """A place in a list is read back as it was written, or refused."""
    text = data.decode("latin-1")
    with refusing(BadCursor):
        place = place_in(text)
        assert place_in(f"{place.rank} {place.key} {place.number} {place.repo}") == place


def _request(path: bytes, body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return b"POST %b HTTP/1.1\r\nhost: h\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path, lines.encode(), len(body), body,
    )  # fmt: skip


def _signed(name: str, body: bytes) -> bytes:
    told = {key.replace("-", "_"): value for key, value in SIGNERS[name](body).items()}
    return _request(b"/webhooks/" + name.encode(), body, **told)


def _http_seeds() -> Iterator[bytes]:
    github = _signed("github", b'{"zen":"a"}')
    gitlab = _signed("gitlab", b'{"object_kind":"push"}')
    yield github
    yield github + gitlab + github
    yield github + b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n" + gitlab
    yield b"HEAD /webhooks/github HTTP/1.1\r\nhost: h\r\n\r\n" + gitlab
    yield b"GET /webhooks/nobody HTTP/1.0\r\n\r\n"
    yield gitlab.replace(b"content-length: 22", b"transfer-encoding: chunked").replace(
        b'{"object_kind":"push"}', b'5\r\n{"a":\r\n2;x=y\r\n1}\r\n0\r\nt: v\r\n\r\n'
    )
    yield _request(b"/webhooks/ci/%2e%2e?x=1", b"{}", expect="100-continue")
    yield _request(b"/webhooks/slack", b"a" * 5000)
    yield _request(b"/webhooks/github", b"{}", connection="upgrade", upgrade="websocket")
    yield _request(b"/webhooks/github", b"{}", connection="upgrade", upgrade="h2c") + gitlab
    yield b"POST http://h/webhooks/github HTTP/1.1\r\nhost: h\r\ncontent-length: 99\r\n\r\n{}"
    yield b"POST /webhooks/github HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n" + gitlab


def _cookie_seeds() -> Iterator[bytes]:
    yield joined(
        b"eyJpZCI6ImFiY2RlZmdoIiwidW50aWwiOjk5OTk5OTk5OTk5OTk5OTksIm5vbmNlIjoibiJ9.AA", b"t"
    )
    yield joined(b"e30.x", b"")


_FORM: Final = b"application/x-www-form-urlencoded"
_HTTP_WORDS: Final = (
    *(b"POST /webhooks/", b"GET / HTTP/1.1\r\n", b"HEAD ", b" HTTP/1.0\r\n", b"\r\n\r\n", b"\r\n"),
    *(
        b"content-length: ",
        b"transfer-encoding: chunked\r\n",
        b"0\r\n\r\n",
        b"expect: 100-continue",
    ),
    *(b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n", b"\n", b"\xb2", b"%00"),
    *(b"github", b"ci/", b"slack", b"PRI * HTTP/2.0\r\n\r\n", b"CONNECT h:1 ", b"\x00", b"; x"),
)
TARGETS: Final = (
    Target("web.http", http_requests, _http_seeds, _HTTP_WORDS),
    Target("web.idempotency_key", idempotency_keys, lambda: [
        joined(b'"8e03978e-40d5-43dd-bc93-6894a57f9324"', b"a=b; c=d", b"application/json", b"{}"),
        joined(b"k\\", b"", b"application/x+json; charset=x", b"NaN")],
        (b'"', b"\\", b"\x1e", b"application/json", b"; ", b"=")),
    Target("web.credentials", credentials, lambda: [
        joined(b"authorization", b"Bearer tow_abcdefgh_" + b"a" * 43), joined(b"x", b"", b"k")],
        (b"Bearer ", b"bearer  ", b"tow_abcdefgh_", b"\x1e", b"authorization", b"x-api-key")),
    Target("web.cookies", cookies, _cookie_seeds, (b".", b"\x1e", b"e30", b"=", b"-_")),
    Target("web.forms", forms, lambda: [joined(_FORM, urlencode({"csrf": "t", "a": "ü"}).encode())],
           (b"\x1e", _FORM, b"&", b"=", b"%ff", b"%00", b"%ed%a0%80", b"; charset=x")),
    Target("web.cursors", cursors, lambda: [b"3 -1700000000000000 12 octo-org/app"], (b" ", b"-")),
)  # fmt: skip
