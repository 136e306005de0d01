"""What a Redis says: its replies, how it greets, and the lines that our scripts return.

It may be another program that listens there, a proxy, or a Redis whose data others have changed.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from tests.fuzz.redis_place import SOUND, RedisPlace, bulk, greeting
from tests.fuzz.target import TOKEN, Target, check_message, joined, parts_of, refusing
from towline.config import Settings
from towline.doctor.probe import Probe, looked
from towline.doctor.servers import look_at_redis
from towline_once.coordination.redis import (
    RedisDocuments,
    RedisLeases,
    RedisRates,
    RedisSeen,
    RedisSlots,
)
from towline_once.db.redis.client import Redis, RedisMailbox
from towline_once.errors import TowlineError
from towline_once.idempotency.redis import RedisRecords
from towline_once.idempotency.state import Draft, Result

_PATIENCE: Final = 10.0
_HEAD: Final = b"id\n1\n1700000000000000"
"""The mark, the count and the time that each answer of a script begins with."""


def replies(data: bytes) -> None:
    """Each command gets an answer or one clear error; none waits for ever."""

    async def called(redis: Redis) -> None:
        RedisMailbox(redis).expect("topic")
        async with asyncio.timeout(_PATIENCE):
            sent = [redis.call("PING") for _ in range(6)]
            for outcome in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(outcome, Exception):
                    assert isinstance(outcome, TowlineError), f"{outcome!r} leaves the connection"
                    check_message(str(outcome))

    _place().play(SOUND, data, called)


def greetings(data: bytes) -> None:
    """A server is taken, or refused in one line that does not repeat the password."""

    async def greeted(redis: Redis) -> None:
        with refusing(TowlineError):
            await redis.connect()

    _place().play(data, b"", greeted)


def scripts(data: bytes) -> None:
    """What no script of ours returns is told to the caller as one clear error."""
    head, line = parts_of(data, 2)

    async def called(redis: Redis) -> None:
        for call in _calls(redis):
            with refusing(TowlineError):
                await call()

    _place().play(SOUND, bulk(b"%b\n%b" % (head or _HEAD, line)), called)


def _calls(redis: Redis) -> list[Callable[[], Awaitable[Any]]]:
    leases, slots, records = RedisLeases(redis), RedisSlots(redis), RedisRecords(redis)
    draft = Draft("t", "k", "api", "h", "0" * 64, "{}", "retry", 1, 1)
    result = Result("t", "k", 1, "completed", None, 0, None, None, 0, 1)
    return [
        lambda: leases.take("n", "h", "a", 1),
        lambda: leases.enqueue("n", "h", "a", 1, 1),
        lambda: leases.peek("n"),
        lambda: slots.take("n", 1, "h", 1),
        lambda: RedisSeen(redis).first_time("k", 1),
        lambda: RedisRates(redis).hit("k", 1, 1, 1),
        lambda: RedisDocuments(redis).read("d"),
        lambda: records.put(draft),
        lambda: records.read("t", "k"),
        lambda: records.settle(result),
        lambda: records.digest_key(),
    ]


def checkups(data: bytes) -> None:
    """The doctor tells in lines what it found, whatever the server answers."""
    place = _place()
    settings = Settings(redis_url=place.url)

    async def looking(redis: Redis) -> None:
        (*found,) = await looked([Probe("redis", lambda: look_at_redis(settings, 5.0), "fix")])
        assert found
        for finding in found:
            check_message(finding.found)
            assert "the check itself failed" not in finding.found, finding.found

    place.play(SOUND, data, looking)


_places: list[RedisPlace] = []


def _place() -> RedisPlace:
    """The one of this process."""
    if not _places:
        _places.append(RedisPlace())
        atexit.register(close)
    return _places[0]


def close() -> None:
    while _places:
        _places.pop().close()


def _reply_seeds() -> Iterator[bytes]:
    yield b"+OK\r\n:1\r\n$2\r\nab\r\n_\r\n*2\r\n:1\r\n$-1\r\n#t\r\n"
    yield b"-ERR unknown command\r\n-NOSCRIPT No matching script\r\n-OOM command not allowed\r\n"
    yield b"-READONLY You can't write\r\n-NOAUTH Authentication required.\r\n"
    yield b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nt\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    yield b"%1\r\n$1\r\na\r\n,1.5\r\n~1\r\n:1\r\n(12345678901234567890123\r\n=7\r\ntxt:abc\r\n"
    yield b"!11\r\nERR a\nb\tc d\r\n|1\r\n+k\r\n+v\r\n+OK\r\n"
    yield b"HTTP/1.1 400 Bad Request\r\n\r\n"


def _greeting_seeds() -> Iterator[bytes]:
    yield SOUND
    yield greeting(b"5.0.7", b"")
    yield greeting(b"7.\xc2\xb2.1", b"maxmemory_policy:allkeys-lru\r\n")
    yield b"-ERR unknown command `HELLO`, with args beginning with: `3` `AUTH`\r\n+OK\r\n$0\r\n\r\n"
    yield b"-WRONGPASS invalid username-password pair\r\n-NOAUTH\r\n-NOAUTH\r\n"
    yield b"-ERR AUTH octocat %b failed\r\n" % TOKEN.encode()
    yield b"+OK\r\n+OK\r\n+OK\r\n"
    yield b"*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n"


def _script_seeds() -> Iterator[bytes]:
    for line in (
        *(b"1", b"", b"0", b"12", b"1 1700000000000000", b"12 a b", b"%b" % (b"ab" * 32)),
        b'["h","a","12","3","1700000000000000"]',
        b'["4","{\\"a\\":1}"]',
        b'["api","processing","12","h",1,"0","{}",false,0,false,false,0,"retry","1","2","3","4"]',
    ):
        yield joined(_HEAD, line)
    yield joined(b"other\n0\n-1", b"1")


def _checkup_seeds() -> Iterator[bytes]:
    yield bulk(b"redis_version:7.2.4\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n")
    yield b"*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n"
    yield b"-NOPERM this user has no permissions\r\n"
    yield b"%1\r\n+save\r\n+3600 1\r\n"


_RESP: Final = (
    *(
        b"\r\n",
        b"+OK\r\n",
        b"-ERR ",
        b"$-1\r\n",
        b"*2\r\n",
        b"%1\r\n",
        b"~1\r\n",
        b">2\r\n",
        b"_\r\n",
    ),
    *(b"#t\r\n", b",nan\r\n", b"(1\r\n", b"=8\r\ntxt:", b"!5\r\n", b"$7\r\nmessage\r\n", b":"),
    *(b"$9\r\nsubscribe\r\n", b"-READONLY ", b"-NOAUTH ", b"-LOADING ", b"|1\r\n", b"version"),
)
TARGETS: Final = (
    Target("redis.replies", replies, _reply_seeds, _RESP),
    Target("redis.greeting", greetings, _greeting_seeds, _RESP),
    Target("redis.scripts", scripts, _script_seeds, (b"\x1e", b"\n", b" ", b'["', b'","', b"]",
           b"1700000000000000", b"-1", b"1e5", b"\xff", b"false", b"null")),
    Target("doctor.redis", checkups, _checkup_seeds, _RESP),
)  # fmt: skip
