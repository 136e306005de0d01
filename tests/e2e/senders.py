"""A crowd of senders: signed GitHub deliveries over keep-alive connections, sent until taken."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count as count_from
from itertools import islice
from typing import NamedTuple

SECRET = "a storm of deliveries"
_PATIENCE = 20.0


class Parcel(NamedTuple):
    delivery_id: str
    request: bytes


def parcels(count: int, seed: int) -> list[Parcel]:
    """Deliveries of many repositories: pushes, and checks of which many are about one commit."""
    return list(islice(endless_parcels(seed), count))


def endless_parcels(seed: int) -> Iterator[Parcel]:
    dice = random.Random(seed)
    return (_parcel(f"delivery-{number:06d}", dice) for number in count_from(0))


def _parcel(delivery_id: str, dice: random.Random) -> Parcel:
    repo = f"acme/app-{dice.randrange(200)}"
    sha = f"{dice.randrange(300):040x}"
    push: dict[str, object] = {"ref": "refs/heads/main", "before": "0" * 40, "after": "c" * 40}
    check: dict[str, object] = {"action": "completed", "check_run": _check(sha)}
    event, payload = dice.choice([("push", push), ("check_run", check)])
    whole = {**payload, "repository": {"full_name": repo}, "pad": "x" * 600}
    return signed(delivery_id, event, whole)


def signed(delivery_id: str, event: str, payload: Mapping[str, object]) -> Parcel:
    """A delivery as GitHub sends it."""
    body = json.dumps(payload).encode()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    head = (
        "POST /webhooks/github HTTP/1.1\r\nhost: towline\r\ncontent-type: application/json\r\n"
        f"x-github-event: {event}\r\nx-github-delivery: {delivery_id}\r\nx-github-hook-id: 7\r\n"
        f"x-hub-signature-256: sha256={signature}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return Parcel(delivery_id, head.encode() + body)


def _check(sha: str) -> dict[str, object]:
    check = {"name": "test", "status": "completed", "conclusion": "success"}
    return {**check, "head_sha": sha, "id": 1}


def with_duplicates(unique: Sequence[Parcel], seed: int) -> list[Parcel]:
    """A third of what is sent are repeats, at any time after or before the first."""
    dice = random.Random(seed)
    sent = [*unique, *dice.choices(unique, k=len(unique) // 2)]
    dice.shuffle(sent)
    return sent


class Crowd:
    """Sends parcels, so many at a time, each until somebody has answered for it with a 2xx."""

    def __init__(self, ports: Callable[[], Sequence[int]], patience: float = _PATIENCE * 3) -> None:
        """A parcel that nobody has taken within `patience` fails the whole crowd."""
        self._ports = ports
        self._patience = patience
        self.answers: dict[str, Counter[str]] = {}
        self.surprises: Counter[int] = Counter()
        self.sent = 0

    async def send(self, parcels: Sequence[Parcel], at_a_time: int) -> None:
        supply = iter(parcels)

        async def following() -> Parcel | None:
            return next(supply, None)

        await self.send_from(following, at_a_time)

    async def send_from(
        self, following: Callable[[], Awaitable[Parcel | None]], at_a_time: int
    ) -> None:
        """As `send`, with parcels that are made when they are asked for, until there is none."""
        async with asyncio.TaskGroup() as group:
            for number in range(at_a_time):
                group.create_task(self._sender(following, number))

    async def has_sent(self, count: int) -> None:
        while True:
            if self.sent >= count:
                return
            await asyncio.sleep(0.01)

    async def _sender(self, following: Callable[[], Awaitable[Parcel | None]], number: int) -> None:
        line = _Line(self._ports, number)
        while (parcel := await following()) is not None:
            async with asyncio.timeout(self._patience):
                await self._insist(line, parcel)
            self.sent += 1
        line.hang_up()

    async def _insist(self, line: _Line, parcel: Parcel) -> None:
        while True:
            if await self._taken(line, parcel):
                return
            await asyncio.sleep(0.02)

    async def _taken(self, line: _Line, parcel: Parcel) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE):
                status, body = await line.ask(parcel.request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            line.hang_up()
            return False
        if status >= 300:
            self.surprises[status] += 1
            return False
        said = json.loads(body)["status"]
        self.answers.setdefault(parcel.delivery_id, Counter())[said] += 1
        return True


class _Line:
    """A connection that is dialled again, to the next server, after it broke."""

    def __init__(self, ports: Callable[[], Sequence[int]], number: int) -> None:
        self._ports = ports
        self._turn = number
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            ports = self._ports()
            self._turn += 1
            port = ports[self._turn % len(ports)]
            self._streams = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = self._streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await reader.readexactly(length)

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
