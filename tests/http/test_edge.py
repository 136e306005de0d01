"""What a connection may cost, and which heads are refused, on both ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from tests.forges.samples import SIGNERS
from tests.http.front_door import (
    LOOPBACK,
    NOTHING,
    SOURCES,
    FrontDoor,
    RawReply,
    front_door,
    head_of,
    push,
    run_of,
    shared,
    until,
)
from towline.config import load
from towline.forges.delivery import DeliveryRejected
from towline.http.host_check import Hosts
from towline.http.uvicorn_protocol import MOST_HEAD_BYTES, MOST_HEAD_LINES
from towline.inbox.sources import SOURCES as ALL_SOURCES
from towline_once.asgi.messages import Problem
from towline_once.errors import Rejected

SOON = 0.3
HOST = f"host: {LOOPBACK}"
LINE = 16


@pytest.fixture(params=["data port", "control port"])
def is_control(request: pytest.FixtureRequest) -> bool:
    """Each test that takes this runs on both ports."""
    return bool(request.param == "control port")


@asynccontextmanager
async def ports(url: str, **tables: Any) -> AsyncIterator[FrontDoor]:
    """A service with a control port of its own."""
    serve = {"control_port": 0} | tables.pop("serve", {})
    async with front_door(url, serve=serve, **tables) as door:
        yield door


async def answered(door: FrontDoor, sent: bytes, is_control: bool = False) -> RawReply:
    async with door.wire(door.control_port if is_control else None) as wire:
        await wire.send(sent)
        return await wire.reply()


def request(*lines: str, target: str = "GET /healthz HTTP/1.1", body: str = "") -> bytes:
    return ("\r\n".join([target, *lines]) + "\r\n\r\n" + body).encode("latin-1")


def is_refusal(reply: RawReply, status: int, code: str) -> bool:
    about = reply.headers["content-type"], reply.headers["connection"]
    found = reply.status, reply.json["code"]
    return found == (status, code) and about == ("application/problem+json", "close")


# ---------------------------------------------------------------------- size


def head_with(count: int, each: int = 8) -> bytes:
    """A request with so many lines in its head."""
    names = (f"x-{number}: " for number in range(count - 1))
    return request(HOST, *(name + "v" * each for name in names))


def head_of_size(size: int) -> bytes:
    """A request whose head has so many bytes, as sent, but for the blank line at its end."""
    empty = request(HOST, "x-long: ")
    return request(HOST, "x-long: " + "v" * (size - len(empty) + 2))


async def test_a_head_as_large_as_allowed(sqlite_url: str, is_control: bool) -> None:
    """A hundred lines pass, and 32 KiB do, in whatever pieces they come."""
    async with ports(sqlite_url) as door:
        for sent in (head_with(MOST_HEAD_LINES), head_of_size(MOST_HEAD_BYTES - 20)):
            assert (await answered(door, sent, is_control)).status == 200
            async with door.wire(door.control_port if is_control else None) as wire:
                for at in range(0, len(sent), 1000):
                    await wire.send(sent[at : at + 1000])
                assert (await wire.reply()).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        head_with(MOST_HEAD_LINES + 1),
        head_of_size(MOST_HEAD_BYTES + 50),
        head_with(90, 400),
        request(HOST, target=f"GET /healthz?{'a' * MOST_HEAD_BYTES} HTTP/1.1"),
        request(HOST, "x: " + "v" * 500_000),
    ],
    ids=["lines", "one long line", "many long lines", "target", "endless line"],
)
async def test_a_head_that_is_too_large(sqlite_url: str, is_control: bool, sent: bytes) -> None:
    """431 and the end of the connection, whole or in pieces; the next one is served."""
    async with ports(sqlite_url) as door:
        for piece in (len(sent), 1000):
            async with door.wire(door.control_port if is_control else None) as wire:
                for at in range(0, len(sent), piece):
                    await wire.send(sent[at : at + piece])
                assert is_refusal(await wire.reply(), 431, "head_too_large")
                assert await wire.hung_up()
        assert (await answered(door, request(HOST), is_control)).status == 200
        await until(lambda: nothing_held(door), "nothing is held any more")


async def nothing_held(door: FrontDoor) -> bool:
    return door.edge.held == 0


async def in_pieces(door: FrontDoor, sent: bytes, *cuts: int) -> RawReply:
    """Each piece is sent when the server has read the one before."""
    async with door.wire() as wire:
        for start, end in pairwise((0, *cuts, len(sent))):
            await wire.send(sent[start:end])

            async def was_read(end: int = end) -> bool:
                return end == len(sent) or door.edge.held >= end

            await until(was_read, f"{end} bytes are read")
        return await wire.reply()


@pytest.mark.parametrize("padding", [0, 8000])
async def test_the_pieces_of_a_head_do_not_matter(sqlite_url: str, padding: int) -> None:
    """Just below the limit, and with blanks that no header has: 200, whole or cut."""
    sent = head_of_size(MOST_HEAD_BYTES + 10).replace(b": v", b": " + b" " * padding + b"v")
    async with ports(sqlite_url) as door:
        assert (await in_pieces(door, sent)).status == 200
        assert (await in_pieces(door, sent, 1, len(sent) - 2)).status == 200


async def test_a_half_head_alone_is_never_too_much(sqlite_url: str) -> None:
    """With a budget so small that its part is less than one head: 200, whole or in pieces."""
    async with ports(sqlite_url, ingest={"max_inflight_bytes": 65_536}) as door:
        sent = head_of_size(30_000)
        assert (await in_pieces(door, sent)).status == 200
        assert (await in_pieces(door, sent, 3000, 9000)).status == 200


def trailers(count: int, each: int, *more: str) -> bytes:
    lines = (f"t-{number}: {'v' * each}\r\n" for number in range(count))
    told = (HOST, "transfer-encoding: chunked", *more)
    head = request(*told, target="POST /webhooks/github HTTP/1.1")
    return head + b"2\r\n{}\r\n0\r\n" + "".join(lines).encode()


@pytest.mark.parametrize(
    "sent",
    [
        trailers(MOST_HEAD_LINES, 1),
        trailers(50, 1000),
        trailers(1, 10**6),
        trailers(30, 800, "x-long: " + "v" * 10_000) + b"\r\n",
    ],
    ids=["lines", "bytes", "one line", "with the head"],
)
async def test_trailers_that_are_too_large(sqlite_url: str, is_control: bool, sent: bytes) -> None:
    """They count together with the head: 431, and their delivery is not taken in."""
    async with ports(sqlite_url) as door:
        if is_control:
            sent = sent.replace(b"/webhooks/github", b"/api/reconciler/run")
        reply = await answered(door, sent, is_control)
        assert is_refusal(reply, 431, "head_too_large") or (is_control and reply.status == 401)
        assert await door.inbox() == []
        await until(lambda: nothing_held(door), "nothing is held any more")


async def test_a_trailer_is_no_header(sqlite_url: str) -> None:
    """A signature or an id behind the body does not count."""
    async with ports(sqlite_url) as door:
        knock = push()
        signature = knock.headers.pop("x-hub-signature-256")
        head = head_of(knock, "transfer-encoding: chunked")
        head = head.replace(b"content-length", b"x-length")
        chunk = b"%x\r\n%b\r\n0\r\n" % (len(knock.body), knock.body)
        trailer = f"x-hub-signature-256: {signature}\r\n\r\n".encode()
        assert (await answered(door, head + chunk + trailer)).status == 401


async def test_one_budget_for_all_connections(sqlite_url: str) -> None:
    """Half a body on one connection leaves no room for another: 503, until it is gone."""
    async with ports(sqlite_url, ingest={"max_inflight_bytes": 20_000}) as door:
        target = "POST /webhooks/github HTTP/1.1"
        half = request(HOST, "content-length: 20000", target=target) + b"v" * 15_000
        knock = shared("ci/drone", run_of(1) | {"note": "x" * 9000})
        async with door.wire() as wire:
            await wire.send(half)

            async def full() -> bool:
                return door.edge.held > 15_000

            await until(full, "the half body is counted")
            answer = await door.post(knock)
            assert (answer.status_code, answer.json()["code"]) == (503, "busy")
            assert int(answer.headers["retry-after"]) >= 1
            target = "POST /api/reconciler/run HTTP/1.1"
            sent = request(HOST, "content-length: 9000", target=target) + b"v" * 9000
            assert is_refusal(await answered(door, sent, is_control=True), 503, "busy")
        await until(lambda: nothing_held(door), "nothing is held any more")
        assert (await door.post(knock)).status_code == 202
        await until(lambda: nothing_held(door), "an answered delivery is not held")


async def test_half_heads_have_a_part_of_the_budget(sqlite_url: str, is_control: bool) -> None:
    """What is too much for it is 503, over both ports; heads that come whole are not concerned."""
    half = request(HOST, "x-long: " + "v" * 15_000)[:-2]
    async with ports(sqlite_url, ingest={"max_inflight_bytes": 640_000}) as door:
        async with door.wire() as first:
            await first.send(half)

            async def counted() -> bool:
                return door.edge.half_heads > 15_000

            await until(counted, "the half head is counted")
            reply = await answered(door, half, is_control)
            assert is_refusal(reply, 503, "busy")
            assert int(reply.headers["retry-after"]) >= 1
            assert (await answered(door, half + b"\r\n", is_control)).status == 200
        await until(lambda: nothing_held(door), "nothing is held any more")
        assert door.edge.half_heads == 0


async def test_pipelining_is_bounded(sqlite_url: str) -> None:
    """Thousands of requests in one go do not become thousands of tasks: the rest is refused."""
    async with ports(sqlite_url) as door, door.wire() as wire:
        await wire.send(request(HOST) * 5000)
        statuses = []
        while (reply := await wire.reply()) != NOTHING:
            statuses.append(reply.status)
        assert statuses[:-1] == [200] * (len(statuses) - 1)
        assert statuses[-1] == 400
        assert 60 < len(statuses) < 5000


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"POST /web", request(HOST)[:-4]])
async def test_a_head_has_a_deadline(sqlite_url: str, is_control: bool, begun: bytes) -> None:
    """A silent connection is closed, and half a head is answered with 408, on both ports."""
    async with (
        ports(sqlite_url, serve={"head_timeout_seconds": SOON}) as door,
        door.wire(door.control_port if is_control else None) as wire,
    ):
        await wire.send(begun)
        if begun.strip():
            assert is_refusal(await wire.reply(), 408, "too_slow")
        assert await wire.hung_up()


async def test_a_dribbled_head_has_the_same_deadline(sqlite_url: str, is_control: bool) -> None:
    """However diligently its bytes arrive."""
    async with (
        ports(sqlite_url, serve={"head_timeout_seconds": SOON}) as door,
        door.wire(door.control_port if is_control else None) as wire,
    ):
        answer = asyncio.create_task(wire.reply())
        for byte in head_of_size(30_000):
            if answer.done():
                break
            await wire.send(bytes([byte]))
            await asyncio.sleep(0.001)
        assert is_refusal(await answer, 408, "too_slow")


async def test_a_second_head_has_a_deadline_too(sqlite_url: str, is_control: bool) -> None:
    """Half a head behind an answered request is not waited for, either."""
    async with (
        ports(sqlite_url, serve={"head_timeout_seconds": SOON}) as door,
        door.wire(door.control_port if is_control else None) as wire,
    ):
        await wire.send(request(HOST) + b"GET /hea")
        assert (await wire.reply()).status == 200
        assert is_refusal(await wire.reply(), 408, "too_slow")
        assert await wire.hung_up()


async def test_an_idle_connection_is_closed(sqlite_url: str) -> None:
    """On the control port as well, and bytes that begin no request do not keep it open."""
    async with front_door(sqlite_url, idle_seconds=SOON, serve={"control_port": 0}) as door:
        for port in (door.port, door.control_port):
            async with door.wire(port) as wire:
                await wire.send(request(HOST))
                assert (await wire.reply()).status == 200
                await wire.send(b"\r\n")
                assert await wire.hung_up()


# ---------------------------------------------------------------------- heads

CHUNKED = "transfer-encoding: chunked"
POST = "POST /api/reconciler/run HTTP/1.1"


@pytest.mark.parametrize(
    "sent",
    [
        request(),
        request(HOST, HOST),
        request(HOST, "host: evil.example"),
        request(target="GET /healthz"),
        request(HOST, target="GET /healthz HTTP/2.0"),
        request(HOST, HOST, target="GET /healthz HTTP/1.0"),
        request(HOST, "te: gzip, chunked"),
        request(HOST, "transfer-encoding: gzip, chunked", target=POST, body="0\r\n\r\n"),
        request(HOST, "transfer-encoding: identity", target=POST),
        request(HOST, CHUNKED, CHUNKED, target=POST, body="0\r\n\r\n"),
        request(HOST, CHUNKED, "content-length: 5", target=POST, body="0\r\n\r\n"),
        request(HOST, "content-length: 5", CHUNKED, target=POST, body="0\r\n\r\n"),
        request(HOST, CHUNKED, target="POST / HTTP/1.0", body="0\r\n\r\n"),
    ],
    ids=[
        "no host", "two hosts", "another host", "HTTP/0.9", "HTTP/2.0",
        "two hosts in HTTP/1.0", "TE", "gzip, chunked", "identity", "chunked twice",
        "chunked and length", "length and chunked", "chunked in HTTP/1.0",
    ],
)  # fmt: skip
async def test_an_ambiguous_head(sqlite_url: str, is_control: bool, sent: bytes) -> None:
    """400 and the end of the connection, on both ports."""
    async with (
        ports(sqlite_url) as door,
        door.wire(door.control_port if is_control else None) as wire,
    ):
        await wire.send(sent)
        assert is_refusal(await wire.reply(), 400, "bad_request")
        assert await wire.hung_up()


async def test_what_old_and_polite_clients_send(sqlite_url: str, is_control: bool) -> None:
    """HTTP/1.0 needs no host, and trailers may be welcome: 200."""
    async with ports(sqlite_url) as door:
        for sent in (
            request(target="GET /healthz HTTP/1.0"),
            request(HOST, "te: trailers, deflate;q=0.5"),
        ):
            assert (await answered(door, sent, is_control)).status == 200


async def test_a_refusal_waits_for_its_turn(sqlite_url: str) -> None:
    """What was sent before is answered first, then the refusal comes, then the end."""
    async with ports(sqlite_url) as door, door.wire() as wire:
        knock = push()
        await wire.send(head_of(knock) + knock.body + request(HOST, HOST))
        assert (await wire.reply()).status == 202
        assert is_refusal(await wire.reply(), 400, "bad_request")
        assert await wire.hung_up()


IDS = {
    "github": "x-github-delivery", "gitlab": "idempotency-key", "ci": "idempotency-key",
    "jira": "x-atlassian-webhook-identifier", "scheduler": "x-cloudscheduler-jobname",
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
async def test_two_signatures_or_ids(sqlite_url: str, source: str) -> None:
    """400 names the header, whichever of the two is right, and nothing is stored."""
    signed = SIGNERS[source](b"{}")
    names = [name for name in signed if "signature" in name or "token" in name]
    names += [IDS[source]] if source in IDS else []
    assert names
    async with ports(sqlite_url) as door:
        for name in names:
            right = signed.get(name, "one")
            for pair in ((right, "another"), ("another", right)):
                rest = [f"{key}: {value}" for key, value in signed.items() if key != name]
                twice = [f"{name}: {value}" for value in pair]
                target = f"POST /webhooks/{source} HTTP/1.1"
                sent = request(HOST, "content-length: 2", *rest, *twice, target=target, body="{}")
                reply = await answered(door, sent)
                assert (reply.status, reply.json["code"]) == (400, "repeated_header"), name
                assert name in reply.json["detail"]
        assert await door.inbox() == []


class _Noting(dict[str, str]):
    """Headers that note which of them are looked at."""

    def __init__(self, *given: Mapping[str, str]) -> None:
        super().__init__(*given)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


@pytest.mark.parametrize("source", SOURCES)
def test_each_header_that_a_source_reads_is_known(source: str) -> None:
    """The edge decodes no other header, and lets none of these come twice."""
    for body in (b"{}", b"payload=%7B%7D"):
        for unsigned in (False, True):
            for given in (SIGNERS[source](body), {}):
                noting = _Noting(given)
                secrets = () if unsigned else ("a test secret", "whsec_c2VjcmV0")
                with suppress(DeliveryRejected):
                    ALL_SOURCES[source].receive(
                        noting, body, secrets, 1_700_000_000.0, allow_unsigned=unsigned
                    )
                assert noting.asked <= ALL_SOURCES[source].headers


# ---------------------------------------------------------------------- names

OPEN = {"webhook_secrets": [], "allow_unsigned": True}
EVIL = "evil.example"


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/", "/api/prs", "/docs", "/openapi.json", "/no"]
)
async def test_another_name_is_refused(sqlite_url: str, is_control: bool, path: str) -> None:
    """By default only names of this machine are answered, on every route of both ports."""
    async with ports(sqlite_url) as door:
        for name in (EVIL, "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil", "", "a b"):
            sent = request(f"host: {name}", target=f"GET {path} HTTP/1.1")
            reply = await answered(door, sent, is_control)
            assert is_refusal(reply, 421, "host_not_allowed"), name
            assert "TOWLINE_SERVE__ALLOWED_HOSTS" in reply.json["detail"]


@pytest.mark.parametrize(
    "name",
    ["localhost", "LocalHost", "localhost.", "localhost:1", "127.0.0.1:80", "[::1]", "[::1]:9"],
)
async def test_names_of_this_machine(sqlite_url: str, is_control: bool, name: str) -> None:
    """With a port, a dot at the end, or in capitals as well."""
    async with ports(sqlite_url) as door:
        assert (await answered(door, request(f"host: {name}"), is_control)).status == 200


async def test_names_that_are_set(sqlite_url: str) -> None:
    """A name, and any below a domain; those of this machine still pass."""
    serve = {"allowed_hosts": "hooks.example, *.internal.example"}
    async with ports(sqlite_url, serve=serve) as door:
        for name, status in {
            "hooks.example": 200, "HOOKS.example:443": 200, "a.b.internal.example": 200,
            "localhost": 200, "internal.example": 421, "xinternal.example": 421, EVIL: 421,
        }.items():  # fmt: skip
            assert (await answered(door, request(f"host: {name}"))).status == status, name
    async with ports(sqlite_url, serve={"allowed_hosts": ["*"]}) as door:
        assert (await answered(door, request(f"host: {EVIL}"))).status == 200


async def test_a_signed_webhook_under_any_name(sqlite_url: str) -> None:
    """A tunnel keeps its own name, since the signature is checked; without one the name counts."""
    async with ports(sqlite_url, jenkins=OPEN) as door:
        knock = push()
        sent = head_of(knock).replace(HOST.encode(), b"host: smee.example") + knock.body
        assert (await answered(door, sent)).status == 202
        for path in ("/webhooks/jenkins", "/webhooks/jenkins?x=/webhooks/github", "/webhooks/no"):
            sent = request(f"host: {EVIL}", target=f"POST {path} HTTP/1.1")
            assert is_refusal(await answered(door, sent), 421, "host_not_allowed"), path


def test_the_very_address_of_the_connection() -> None:
    """A probe of a pod's address passes, as does the name that is listened on; others do not."""
    hosts = Hosts((), ("towline.internal", "0.0.0.0", "::"), ())
    for host, address in {
        b"10.1.2.3:8788": "10.1.2.3",
        b"10.1.2.3": "::ffff:10.1.2.3",
        b"[fe80::1]:8788": "fe80:0:0::1",
        b"towline.internal:8788": "10.1.2.3",
    }.items():
        hosts.check(host, address, b"/metrics")
    for host in (b"10.1.2.4", b"0.0.0.0", b"[::]", b"[10.1.2.3", b"10.1.2.3:x", b"x" * 40_000):
        with pytest.raises(Problem):
            hosts.check(host, "10.1.2.3", b"/metrics")


@pytest.mark.parametrize("value", ["https://a.example", "a.example:80", "*.", "a b/c", "*a"])
def test_what_is_no_name_is_refused_at_the_start(value: str) -> None:
    """One line names the setting and says what is allowed."""
    with pytest.raises(Rejected, match=r"serve\.allowed_hosts.*without scheme, port or path"):
        load(None, {"TOWLINE_SERVE__ALLOWED_HOSTS": value})


async def test_a_full_process_closes_new_connections(sqlite_url: str) -> None:
    """Those that are open go on."""
    async with ports(sqlite_url) as door, door.wire() as wire:
        await wire.send(request(HOST))
        assert (await wire.reply()).status == 200
        limits = door.edge.limits
        object.__setattr__(limits, "max_connections", door.edge.connections)
        assert await answered(door, request(HOST)) == NOTHING
        await wire.send(request(HOST))
        assert (await wire.reply()).status == 200
