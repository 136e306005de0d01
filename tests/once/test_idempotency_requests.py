"""What the middleware reads of a request: its key, its tenant, its payload, or garbage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import towline
from tests.http.asgi_client import JSON, Reply, call, one_shop
from towline_once.asgi.messages import Receive, Scope, Send

TEXT = (b"content-type", b"text/plain")


class Echo:
    """Counts its runs and answers with what it was sent."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.runs += 1
        body = (await receive())["body"] if scope["type"] == "http" else b""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d " % self.runs + body})


def guarded(**options: Any) -> tuple[towline.IdempotencyMiddleware, Echo]:
    echo = Echo()
    given: dict[str, Any] = {"store_url": "memory://", "tenant": one_shop} | options
    return towline.IdempotencyMiddleware(echo, **given), echo


async def run_twice(
    first: dict[str, Any], second: dict[str, Any], **options: Any
) -> tuple[int, Reply]:
    """How often the app ran, and the second answer."""
    app, echo = guarded(**options)
    await call(app, **first)
    reply = await call(app, **second)
    return echo.runs, reply


# ---------------------------------------------------------------------- the key


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"k" * 256, b"a\x00b", b"a\x7fb", b"caf\xc3\xa9", b"tab\tin", b'"open', b'""',
     b'"a"b"', b'"a\\b"', b'"a";v=1', b'" "', b'"'],
)  # fmt: skip
async def test_an_unusable_key_is_refused(value: bytes) -> None:
    """The answer says what a key may be, and the app does not run."""
    app, echo = guarded()
    reply = await call(app, value)
    assert (reply.status, reply.code, echo.runs) == (400, "key_invalid", 0)
    assert b"1 to 255 printable ASCII characters" in reply.body


@pytest.mark.parametrize(
    ("first", "second"),
    [(b"abc", b'"abc"'), (b'"a\\"b\\\\c"', b'"a\\"b\\\\c"'), (b" abc\t", b"abc"), (b'a"b', b'a"b'),
     (b"k" * 255, b'"%b"' % (b"k" * 255))],
)  # fmt: skip
async def test_a_quoted_key_is_the_text_it_quotes(first: bytes, second: bytes) -> None:
    """Clients that follow the IETF draft and those that send the bare text mean the same."""
    runs, reply = await run_twice({"key": first}, {"key": second})
    assert (runs, reply.replayed) == (1, True)


async def test_a_key_sent_twice_must_be_the_same() -> None:
    """Two values leave open which one counts."""
    app, echo = guarded()
    again = (b"idempotency-key", b"k1")
    assert (await call(app, b"k2", headers=(JSON, again))).code == "key_invalid"
    assert (await call(app, b"k1", headers=(JSON, again))).status == 200
    assert echo.runs == 1


async def test_the_first_of_several_headers_counts() -> None:
    """A name that is not sent is passed over; one that is sent hides the later ones."""
    app, echo = guarded(header=("Idempotency-Key", "X-Idempotency-Key", "X-Request-ID"))
    other, request_id = (b"x-idempotency-key", b"b"), (b"x-request-id", b"c")
    assert not (await call(app, b"a", headers=(JSON, other, request_id))).replayed
    assert not (await call(app, None, headers=(JSON, request_id, other))).replayed
    assert (await call(app, b"b", headers=(JSON,))).replayed
    assert not (await call(app, None, headers=(JSON, request_id))).replayed
    assert echo.runs == 3


async def test_a_key_may_be_required() -> None:
    """A guarded method without a key is refused by name; others pass."""
    app, echo = guarded(required=True, header="X-Request-ID")
    reply = await call(app)
    assert (reply.status, reply.code, echo.runs) == (400, "key_missing", 0)
    assert b"X-Request-ID" in reply.body
    assert (await call(app, None, method="GET")).status == 200


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"path": "/a"}, {"path": "/b"}),
        ({"method": "POST"}, {"method": "PATCH"}),
        ({"path": "/a b", "key": b"c"}, {"path": "/a", "key": b"b c"}),
        ({"path": "/a\ud800"}, {"path": "/a?"}),
    ],
)
async def test_the_endpoint_is_part_of_the_key(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    """One key at two endpoints is two keys, however their parts are cut."""
    runs, reply = await run_twice(first, second)
    assert (runs, reply.replayed) == (2, False)


async def test_methods_are_chosen() -> None:
    """PUT and DELETE are not guarded unless that is asked for."""
    assert (await run_twice({"method": "PUT"}, {"method": "PUT"}))[0] == 2
    assert (await run_twice({"method": "PUT"}, {"method": "PUT"}, methods=["put"]))[0] == 1
    assert (await run_twice({}, {}, methods="DELETE"))[0] == 2


# ---------------------------------------------------------------------- the tenant


def by_header(scope: Scope) -> str:
    names = [value for name, value in scope["headers"] if name == b"x-tenant"]
    if not names:
        raise towline.Rejected("send X-Tenant")
    text: str = names[0].decode("latin-1")
    return text


async def test_the_tenant_may_be_named_by_a_function() -> None:
    """Its word counts, not the credentials."""
    app, echo = guarded(tenant=by_header)
    acme, other = (JSON, (b"x-tenant", b"acme")), (JSON, (b"x-tenant", b"other"))
    assert not (await call(app, headers=acme)).replayed
    assert not (await call(app, headers=other)).replayed
    assert (await call(app, headers=(*acme, (b"authorization", b"x"), (b"cookie", b"y")))).replayed
    assert echo.runs == 2


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"x-tenant", b""),),
        ((b"x-tenant", b"\x00"),),
        ((b"x-tenant", b"t" * 600),),
        ((b"x-tenant", b"\xe9" * 300),),
    ],
)
async def test_a_request_without_a_usable_tenant_is_refused(headers: Any) -> None:
    """A missing tenant is never taken for the empty one."""
    app, echo = guarded(tenant=by_header)
    reply = await call(app, headers=headers)
    assert (reply.status, reply.code, echo.runs) == (400, "tenant_invalid", 0)


# ---------------------------------------------------------------------- the payload


@pytest.mark.parametrize(
    ("first", "second", "pointers"),
    [
        (b'{"a": 1, "b": [1]}', b'{"a": 2, "b": [1, 2]}', ["/a", "/b"]),
        (b'{"query": 1, "bytes": 1}', b'{"query": 2, "bytes": 2}', ["/bytes", "/query"]),
        (b"[1]", b"[2]", [""]),
        (b'{"a": 1, "a": 2}', b'{"a": 2, "a": 2}', [""]),
        (b'{"a": NaN}', b'{"a": 1}', [""]),
        (b'{"a": 9007199254740993}', b'{"a": 9007199254740992}', [""]),
        (b"[" * 200 + b"1" + b"]" * 200, b"[" * 200 + b"2" + b"]" * 200, [""]),
        (b"\xff", b"\xfe", [""]),
    ],
)
async def test_a_collision_names_the_pointers(
    first: bytes, second: bytes, pointers: list[str]
) -> None:
    """JSON is compared by value, where it has just one; any other body as a whole."""
    runs, reply = await run_twice({"body": first}, {"body": second})
    assert (runs, reply.status, reply.code) == (1, 409, "key_collision")
    assert f'"pointers":{pointers}'.replace("'", '"').replace(" ", "").encode() in reply.body
    assert (await run_twice({"body": first}, {"body": first}))[0] == 1


async def test_only_json_is_compared_by_value() -> None:
    """Text that happens to look like JSON is compared byte by byte."""
    one, other = b'{"a": 1}', b'{"a":1}'
    assert (await run_twice({"body": one}, {"body": other}))[1].replayed
    plain = {"headers": (TEXT,)}
    assert (await run_twice({"body": one, **plain}, {"body": other, **plain}))[1].status == 409
    special = {"headers": ((b"content-type", b"Application/Merge-Patch+JSON"),)}
    assert (await run_twice({"body": one, **special}, {"body": other, **special}))[1].replayed


async def test_the_query_is_part_of_the_payload() -> None:
    """Garbage in it is compared like anything else."""
    runs, reply = await run_twice({"query": b"a=\xff"}, {"query": b"a=\xfe"})
    assert (runs, reply.code) == (1, "key_collision")


async def test_a_large_body_is_refused_only_with_a_key() -> None:
    """What cannot be compared is not run under a key; the limit itself is allowed."""
    app, echo = guarded(max_body_bytes=10)
    reply = await call(app, b"k1", b"x" * 11)
    assert (reply.status, reply.code, echo.runs) == (413, "too_large", 0)
    assert (await call(app, b"k1", b"x" * 10)).status == 200
    assert (await call(app, None, b"x" * 11)).status == 200


# ---------------------------------------------------------------------- garbage

_HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"idempotency-key", b"content-type", b"cookie", b"authorization", b"x-tenant", b"x"]
        )
        | st.binary(max_size=8),
        st.binary(max_size=40) | st.just(b"application/json"),
    ),
    max_size=6,
)


@given(
    headers=_HEADERS,
    key=st.none() | st.binary(max_size=300),
    body=st.binary(max_size=200),
    query=st.binary(max_size=30),
    path=st.text(st.characters(), max_size=30),
    status=st.sampled_from([200, 204, 304, 404]),
)
def test_no_bytes_make_the_middleware_fail(
    headers: list[tuple[bytes, bytes]],
    key: bytes | None,
    body: bytes,
    query: bytes,
    path: str,
    status: int,
) -> None:
    """Whatever is sent, it is refused with a 4xx, or run once and replayed to the byte."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sent = (await receive())["body"]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": sent if status in (200, 404) else b""})

    async def twice() -> list[Reply]:
        guard = towline.IdempotencyMiddleware(
            app, store_url="memory://", tenant=one_shop, store_statuses=("2xx", "3xx", "4xx")
        )
        request = {"path": path, "query": query, "headers": tuple(headers)}
        return [await call(guard, key, body, **request) for _ in range(2)]  # type: ignore[arg-type]

    first, second = asyncio.run(twice())
    if first.status == 400:
        assert first.code == "key_invalid"
    else:
        assert (first.status, first.body) == (status, body if status in (200, 404) else b"")
    if (second.header(b"content-type") or b"").startswith(b"text/event-stream"):
        return
    assert (second.status, second.body) == (first.status, first.body)


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store_url": None}, "either store_url or store"),
        ({"store": "x"}, "either store_url or store"),
        ({"store_url": None, "store": "x"}, "open Idempotency handle"),
        ({"store_url": "mysql://x"}, "memory://"),
        ({"header": ""}, "header is a name"),
        ({"header": []}, "header is a name"),
        ({"header": "a b"}, "header is a name"),
        ({"methods": ["GET"]}, "methods cannot have GET"),
        ({"methods": [1]}, "methods is a name"),
        ({"tenant": "acme"}, "tenant is a plain function"),
        ({"tenant": asyncio.sleep}, "tenant is a plain function"),
        ({"required": "yes"}, "required is one of"),
        ({"collision_status": 400}, "collision_status is one of 409, 422"),
        ({"max_body_bytes": 0}, "max_body_bytes is a whole number"),
        ({"max_cached_bytes": True}, "max_cached_bytes is a whole number"),
        ({"replay_headers": ["Set-Cookie"]}, "replay_headers cannot have set-cookie"),
        ({"replay_headers": ["Connection"]}, "replay_headers cannot have connection"),
        ({"replay_headers": ["WWW-Authenticate"]}, "replay_headers cannot have www-auth"),
        ({"on_crash": "ignore"}, "on_crash is one of retry, park, fail"),
        ({"drain_seconds": -1}, "drain_seconds is above zero"),
        ({"lock_ttl": 0}, "lock_ttl is above zero"),
        ({"lock_tll": 1}, "no option 'lock_tll'"),
    ],
)
def test_a_wrong_option_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    """The sentence names the option and what it may be."""
    with pytest.raises(towline.Rejected, match=said):
        guarded(**options)


async def test_an_open_store_stays_its_owners() -> None:
    """It is used as it is, with its own options, and never closed."""
    async with towline.Idempotency.open("memory://") as store:
        with pytest.raises(towline.Rejected, match="lock_ttl goes with store_url"):
            guarded(store_url=None, store=store, lock_ttl=1)
        app, echo = guarded(store_url=None, store=store)
        await call(app)
        await app.aclose()
        assert (await call(app)).replayed
        assert (await store.stats())["completed.api"] == echo.runs == 1


async def test_headers_to_replay_are_chosen() -> None:
    """What is named comes back, and so does the encoding without which the body is unreadable."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        names = (b"X-Rate", b"etag", b"Content-Encoding", b"link", b"set-cookie")
        headers = [(name, b"v") for name in (*names, b"link")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})

    guard = towline.IdempotencyMiddleware(
        app, store_url="memory://", tenant=one_shop, replay_headers=("X-Rate", "Link")
    )
    await call(guard)
    names = [name for name, _ in (await call(guard)).headers]
    expected = [b"x-rate", b"content-encoding", b"link", b"link", b"idempotent-replayed"]
    assert names == expected
