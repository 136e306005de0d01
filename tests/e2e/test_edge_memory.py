"""The memory of `towline serve` while strangers try to use it up, and while it works."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.programs import Program
from tests.forges.samples import SECRET
from tests.http.front_door import LOOPBACK, head_of, push, until

MOST_MB = 200
IDLE, HALF, ENDLESS, DELIVERIES, CALLERS = 10_000, 1_000, 100, 50_000, 16
FILES = IDLE + HALF + ENDLESS + 500
FLOOD_SECONDS = 4.0
LINES = b"".join(b"x-%d: %b\r\n" % (number, b"v" * 100) for number in range(1000))


@pytest.fixture
def many_files() -> Iterator[int]:
    """As many open files as the test needs, or as the system allows; the number is given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_mb(pid: int) -> float:
    """Its highest so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


class _Silent(asyncio.Protocol):
    """Says `opening` and no more; notes the end."""

    ended = 0

    def __init__(self, opening: bytes) -> None:
        self._opening = opening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._opening)

    def connection_lost(self, error: Exception | None) -> None:
        _Silent.ended += 1


async def opened(port: int, opening: bytes, count: int) -> None:
    loop = asyncio.get_running_loop()
    for begun in range(0, count, 200):
        await asyncio.gather(
            *(
                loop.create_connection(lambda: _Silent(opening), LOOPBACK, port)
                for _ in range(min(200, count - begun))
            )
        )


async def flooding(port: int, begun: bytes) -> int:
    """Headers without end over a hundred connections, each opened anew when it is closed."""
    sent = 0
    deadline = asyncio.get_running_loop().time() + FLOOD_SECONDS

    async def one() -> None:
        nonlocal sent
        while asyncio.get_running_loop().time() < deadline:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
            with contextlib.suppress(ConnectionError):
                writer.write(begun)
                for _ in range(50):
                    writer.write(LINES)
                    await writer.drain()
                    sent += len(LINES)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    await asyncio.gather(*(one() for _ in range(ENDLESS)))
    return sent


async def delivering(port: int, count: int) -> list[int]:
    """So many new deliveries over a few connections that stay open."""
    statuses: list[int] = []
    left = iter(range(count))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        for _ in left:
            knock = push("acme/app")
            writer.write(head_of(knock) + knock.body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            statuses.append(int(head[9:12]))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one() for _ in range(CALLERS)))
    return statuses


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_memory_stays_bounded(tmp_path: Path, many_files: int) -> None:
    """Under 200 MB through silent, half-way and endless clients, and 50,000 deliveries."""
    idle = min(IDLE, many_files - HALF - ENDLESS - 500)
    assert idle > 0, f"this system allows {many_files} open files only"
    settings = {
        "TOWLINE_DATABASE_URL": f"sqlite:///{tmp_path}/towline.db",
        "TOWLINE_GITHUB__WEBHOOK_SECRETS": SECRET,
    }
    with Program(tmp_path, settings, "serve") as program:
        port, pid = program.port, program.pid
        before = _Silent.ended
        await opened(port, b"", idle)
        half = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-half: " + b"v" * 30_000
        await opened(port, half, HALF)
        assert set(await delivering(port, 100)) <= {200, 202}
        figures = {"idle and half": resident_mb(pid)}
        head = b"POST /webhooks/github HTTP/1.1\r\nhost: localhost\r\n"
        assert await flooding(port, head) > 1_000_000
        figures["endless heads"] = resident_mb(pid)
        await flooding(port, head + b"transfer-encoding: chunked\r\n\r\n0\r\n")
        figures["endless trailers"] = resident_mb(pid)

        async def all_closed() -> bool:
            return _Silent.ended - before == idle + HALF

        await until(all_closed, "all that said nothing, or half a head, are closed")
        statuses = await delivering(port, DELIVERIES)
        figures["deliveries"] = resident_mb(pid)
        assert len(statuses) == DELIVERIES
        assert set(statuses) <= {200, 202}
        assert max(figures.values()) < MOST_MB, figures
