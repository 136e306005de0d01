"""Requests over connections that stay open: one at a time on each, the next after its answer.

A small client of our own, so that it takes little of the processors that the server needs.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.doors.bodies import EVENT, Body

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_LONGEST_ANSWER_SECONDS = 20.0


class Requests:
    """Signed deliveries without end, or as many as there are ids."""

    def __init__(self, path: str, bodies: Sequence[Body], ids: Sequence[bytes]) -> None:
        heads = []
        for body in bodies:
            lines = (
                f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Accept: */*",
                "User-Agent: GitHub-Hookshot/044aadd", "Content-Type: application/json",
                f"X-GitHub-Event: {EVENT}", "X-GitHub-Hook-ID: 292430182",
                f"X-Hub-Signature-256: {body.signature}",
                f"Content-Length: {len(body.content)}", "X-GitHub-Delivery: ",
            )  # fmt: skip
            heads.append("\r\n".join(lines).encode())
        self._heads = heads
        self._tails = [b"\r\n\r\n" + body.content for body in bodies]
        self._ids = ids
        self._sent = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        number = self._sent
        if number >= len(self._ids):
            raise StopIteration
        self._sent += 1
        place = number % len(self._heads)
        return self._heads[place] + self._ids[number] + self._tails[place]


@dataclass
class Outcome:
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def accepted(self) -> int:
        return sum(count for status, count in self.statuses.items() if 200 <= status < 300)


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Requests, outcome: Outcome, deadline: float) -> None:
        self._requests = requests
        self._outcome = outcome
        self._deadline = deadline
        self._transport: Any = None
        self._received = b""
        self._began = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        request = next(self._requests, None) if self._began < self._deadline else None
        if request is None:
            self._transport.close()
            return
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._received:
            data = self._received + data
        end = data.find(b"\r\n\r\n")
        length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
        if end < 0 or (length is not None and len(data) < end + 4 + int(length[1])):
            self._received = data
            return
        assert length is not None, data[:200]
        self._received = b""
        self._outcome.statuses[int(data[9:12])] += 1
        self._outcome.latencies.append(time.perf_counter() - self._began)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def drive(port: int, requests: Requests, connections: int, seconds: float) -> Outcome:
    loop = asyncio.get_running_loop()
    outcome = Outcome()
    began = time.perf_counter()
    ends = []
    for _ in range(connections):
        _, connection = await loop.create_connection(
            lambda: _Connection(requests, outcome, began + seconds), "127.0.0.1", port
        )
        ends.append(connection.ended)
    async with asyncio.timeout(seconds + _LONGEST_ANSWER_SECONDS):
        await asyncio.gather(*ends)
    outcome.seconds = time.perf_counter() - began
    return outcome
