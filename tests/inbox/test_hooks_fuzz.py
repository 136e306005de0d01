"""Whatever bytes arrive at the front door, on a socket: a 4xx at worst, and it stays open."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.forges.samples import SIGNERS
from tests.http.front_door import FORM, SOURCES, FrontDoor, Knock, RawReply, front_door, ping, slack
from tests.sizes import size

numbers = itertools.count(1)
SOON = 0.15
"""How long the server waits for bytes that do not come."""
EASY = settings(
    max_examples=size(30, 750),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MORE = settings(EASY, max_examples=size(60, 2_000))

NAMES = [
    *("content-type", "authorization", "idempotency-key", "x-towline-token", "host", "cookie"),
    *("x-github-delivery", "x-github-event", "x-github-hook-id", "x-hub-signature-256"),
    *("x-gitlab-token", "x-gitlab-event", "webhook-id", "webhook-timestamp", "webhook-signature"),
    *("x-slack-signature", "x-slack-request-timestamp", "x-atlassian-webhook-identifier"),
    *("x-cloudscheduler-jobname", "x-cloudscheduler-scheduletime", "forwarded", "x-forwarded-for"),
]
FRAMING = ["content-length", "transfer-encoding", "expect", "connection", "upgrade", "te"]
WORDS = [
    *(
        b"",
        b"0",
        b"-1",
        b"500",
        b"1e3",
        b"99999999999999999999",
        b"chunked",
        b"gzip, chunked",
        b"close",
    ),
    *(b"100-continue", b"websocket", b"h2c", b"upgrade", b"application/x-www-form-urlencoded"),
    *(b"sha256=", b"v0=", b"Basic /w==", b"Bearer \xff", b"\x00", b"\xc3\xbc", b"a" * 9000),
]

TOKEN = "abcdefghijklmnopqrstuvwxyzABC0123456789-_.!#$%&'*+^`|~"
PRINTED = [*range(0x20, 0x7F), *range(0x80, 0x100)]


def one_line(raw: bytes) -> bytes:
    return raw.replace(b"\r", b"").replace(b"\n", b"")


odd_values = st.lists(st.sampled_from(PRINTED), max_size=30).map(bytes)
values = odd_values | st.sampled_from([word for word in WORDS if word != b"\x00"])
names = st.sampled_from([name.encode() for name in NAMES]) | st.text(TOKEN, min_size=1).map(
    lambda text: b"x-" + text.encode()
)
lines = st.lists(st.tuples(names, values), max_size=6)
rude_lines = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=12).map(one_line) | names,
        st.binary(max_size=30).map(one_line) | st.sampled_from(WORDS),
    ),
    min_size=1,
    max_size=3,
)
bodies = st.binary(max_size=300) | st.sampled_from(
    [b"{}", b'{"a":1,"a":2}', b"payload=%7B%7D", b"[" * 10_000, b"a=%ff", b'{"type":"x"}']
)
scalars = (
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False)
    | st.text(max_size=20) | st.sampled_from(["\0", "f" * 40, "o/n", "completed", "9" * 300])
)  # fmt: skip
nodes = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
members = st.sampled_from(
    [
        *("repo", "run_id", "status", "provider", "event", "build", "url", "name", "type", "issue"),
        *("project", "object_kind", "object_attributes", "repository", "action", "pull_request"),
        *("team_id", "event_id", "trigger_id", "challenge", "webhookEvent", "check_run", "number"),
    ]
)
SOUND: dict[str, dict[str, Any]] = {
    "ci": {"repo": "o/n", "run_id": 1, "status": "failed", "provider": "p", "head_sha": "a" * 40},
    "jenkins": {"name": "job", "build": {"number": 1, "phase": "COMPLETED", "status": "FAILURE"}},
    "scheduler": {"schedule_id": "a", "execution_time": "2024-01-01T00:00:00Z"},
}
payloads = st.dictionaries(members, nodes, max_size=4)


def written(source: str, payload: dict[str, Any], before: bytes) -> bytes:
    """A payload that has what its source needs, unless something odd took its place."""
    return before + json.dumps(SOUND.get(source, {}) | payload).encode()


segments = st.text(max_size=20).map(lambda text: quote(text.encode("utf-8", "surrogatepass")))
places = st.one_of(
    st.sampled_from([name.encode() for name in SOURCES]),
    segments.map(lambda text: b"ci/" + text.encode()),
    st.sampled_from([b"ci/%00", b"ci/%ff", b"ci/..", b"github?x=%zz", b"%67ithub", b"github#x"]),
    segments.map(str.encode),
)


class Site:
    """A front door in a loop of its own, and what it says in its log."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        opening = front_door(url, ingest={"body_timeout_seconds": SOON, "max_body_bytes": 10**6})
        self.door: FrontDoor = self.loop.run_until_complete(
            self._stack.enter_async_context(opening)
        )

    def say(self, *parts: bytes) -> RawReply:
        """Send bytes on a new connection; what comes back, if anything does."""
        return self.loop.run_until_complete(self._say(parts))

    async def _say(self, parts: tuple[bytes, ...]) -> RawReply:
        async with self.door.wire() as wire:
            for part in parts:
                await wire.send(part)
            return await wire.reply()

    def say_and_leave(self, raw: bytes) -> None:
        async def knock() -> None:
            async with self.door.wire() as wire:
                await wire.send(raw)

        self.loop.run_until_complete(knock())

    def post(self, knock: Knock) -> int:
        return self.loop.run_until_complete(self.door.post(knock)).status_code

    def close(self) -> None:
        self.loop.run_until_complete(self._stack.aclose())
        self.loop.close()


@pytest.fixture
def site(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> Iterator[Site]:
    """Afterwards its log must hold no error, and it must still serve."""
    caplog.set_level(logging.ERROR)
    opened = Site(sqlite_url)
    yield opened
    assert opened.post(ping()) == 202
    opened.close()
    assert [record.getMessage() for record in caplog.records] == []


def request(method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    head = b"%b %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n" % (
        method,
        path,
        len(body),
    )
    return head + b"".join(b"%b: %b\r\n" % line for line in headers) + b"\r\n" + body


def signed(source: str, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A request with the headers its source needs, and others beside them."""
    needed = slack(body).headers if source == "slack" else SIGNERS[source](body)
    for name in {"x-github-delivery", "idempotency-key"} & needed.keys():
        needed[name] = f"number-{next(numbers)}"
    more = [line for line in headers if line[0].decode().lower() not in needed]
    ours = [(name.encode(), value.encode()) for name, value in needed.items()]
    return request(b"POST", f"/webhooks/{source}".encode(), ours + more, body)


def check_reply(reply: RawReply) -> None:
    """An answer of ours or of the parser before us, but no failure."""
    assert 200 <= reply.status < 500, reply
    if reply.status >= 400 and b"Invalid HTTP request" not in reply.body:
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json["code"]


@MORE
@given(place=places, headers=lines, body=bodies)
@example(place=b"ci/x", headers=[(b"x-towline-token", b"\xff")], body=b"{}")
@example(place=b"slack", headers=[(b"x-slack-request-timestamp", b"\xb2")], body=b"")
def test_any_path_headers_and_body(
    site: Site, place: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Odd bytes in the path, in names and values of headers and in the body, well framed."""
    check_reply(site.say(request(b"POST", b"/webhooks/" + place, headers, body)))


@EASY
@given(place=st.binary(max_size=20).map(one_line), headers=rude_lines, body=bodies)
@example(place=b"ci/\xff", headers=[(b"x-\xff", b"\xff")], body=b"{}")
def test_what_no_client_would_send(
    site: Site, place: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Raw bytes of all values in the path and in headers: mostly the parser's to refuse."""
    check_reply(site.say(request(b"POST", b"/webhooks/" + place, headers, body)))


@EASY
@given(source=st.sampled_from(SOURCES), headers=lines, body=bodies)
@example(source="slack", headers=[(b"content-type", FORM.encode())], body=b"payload=%7B%7D")
def test_any_body_well_signed(
    site: Site, source: str, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Past the signature: odd headers and bodies of senders that know the secret."""
    check_reply(site.say(signed(source, headers, body)))


@MORE
@given(
    source=st.sampled_from(SOURCES),
    headers=lines,
    payload=payloads,
    before=st.sampled_from([b"", b" ", b"\n\t"]),
)
@example(source="ci", headers=[], payload={"n": 10**40}, before=b" ")
def test_any_json_well_signed(
    site: Site,
    source: str,
    headers: list[tuple[bytes, bytes]],
    payload: dict[str, Any],
    before: bytes,
) -> None:
    """Payloads with something odd in them are refused or stored, down to the database."""
    check_reply(site.say(signed(source, headers, written(source, payload, before))))


@EASY
@given(
    framing=st.lists(st.tuples(st.sampled_from(FRAMING), values), min_size=1, max_size=3),
    body=bodies,
)
@example(framing=[("upgrade", b"websocket"), ("connection", b"upgrade")], body=b"{}")
@example(framing=[("upgrade", b"h2c"), ("connection", b"upgrade")], body=b"{}")
@example(framing=[("transfer-encoding", b"chunked")], body=b"zz\r\n")
@example(framing=[("expect", b"100-continue"), ("content-length", b"-1")], body=b"")
def test_any_framing(site: Site, framing: list[tuple[str, bytes]], body: bytes) -> None:
    """Lengths and encodings that contradict each other end in an answer or a closed line."""
    lines_of = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in framing)
    head = b"POST /webhooks/github HTTP/1.1\r\nhost: localhost\r\n" + lines_of + b"\r\n"
    reply = site.say(head, body)
    assert reply.status < 500, reply


@EASY
@given(method=st.binary(min_size=1, max_size=10), raw=st.binary(max_size=200))
@example(method=b"GET", raw=b"")
@example(method=b"POST", raw=b"POST /webhooks/github HTTP/1.1\r\ncontent-length: 5\r\n\r\nab")
@example(method=b"POST", raw=b"\r\n" * 50)
def test_any_bytes_at_all(site: Site, method: bytes, raw: bytes) -> None:
    """Bytes that are no request, or a part of one, and then the client is gone."""
    site.say_and_leave(raw)
    site.say_and_leave(method + b" /webhooks/github HTTP/1.1\r\n" + raw)
    assert site.post(ping()) == 202


def test_requests_one_after_the_other_on_one_line(site: Site) -> None:
    """Good ones between refused ones are served; none is taken for a part of another."""

    async def talk() -> list[int]:
        statuses = []
        async with site.door.wire() as wire:
            for number in range(20):
                knock = ping()
                headers = knock.headers if number % 2 else {}
                ours = [(name.encode(), value.encode()) for name, value in headers.items()]
                await wire.send(request(b"POST", knock.path.encode(), ours, knock.body))
                statuses.append((await wire.reply()).status)
        return statuses

    assert site.loop.run_until_complete(talk()) == [401, 202] * 10


def test_requests_sent_without_waiting(site: Site) -> None:
    """Pipelined requests are answered in order, also when the first is refused unread."""

    async def talk() -> list[int]:
        async with site.door.wire() as wire:
            first, second = ping(), ping()
            ours = [(name.encode(), value.encode()) for name, value in second.headers.items()]
            await wire.send(
                request(b"POST", b"/webhooks/nobody", [], first.body)
                + request(b"PUT", b"/webhooks/github", [], first.body)
                + request(b"POST", b"/webhooks/github", ours, second.body)
            )
            return [(await wire.reply()).status for _ in range(3)]

    assert site.loop.run_until_complete(talk()) == [404, 405, 202]
