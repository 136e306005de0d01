"""Lua scripts whose concurrent calls share one execution.

Calls of one turn of the event loop to one script travel as one EVALSHA: the server's time, the
mark of its data and the allotment of tokens are then read and written once for all of them. A
script is the body of a function `run(key, …)` that sees one call. It may use

    now         the server's time in microseconds, plus the clock's shift
    allot()     a new token, larger than any before; at most once in a run
    digits(x)   a whole number as text

and returns one line of text. The answers of all calls go back as one string of lines, because
Redis writes every table of an answer with a system call of its own.

Whatever a script does must be harmless when done twice, for when a connection breaks nobody knows
whether the script ran, and it is sent once more on a new connection if its deadline allows. The
tokens of all calls are reserved before the first call runs, so an error half-way cannot make one
come up again. They are at least the server's time, so they grow even if the server forgot all.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

from towline.errors import Rejected, TowlineError
from towline.store.redis_multiplexer import (
    Lost,
    Multiplexer,
    NoScript,
    NotAuthenticated,
    ReadOnly,
    pack,
)

if TYPE_CHECKING:
    from towline.store.redis import Redis

_FULL_BATCH = 16
"""A full batch leaves at once: the server works on it while we pack the next. At 32 callers that
made 44,000 cycles a second, against 26,000 in one large batch that server and client pass to and
fro, each idle meanwhile."""

_BEFORE = """
local moment = redis.call('TIME')
local now = moment[1] * 1000000 + moment[2] + ARGV[1]
local meta = redis.call('HMGET', 'towline:meta', 'id', 'n', 't')
local id, n = meta[1] or '', tonumber(meta[2] or 0)
local function digits(number)
  return string.format('%d', number)
end
"""

_BEFORE_WRITING = """
local last_token = math.max(tonumber(meta[3] or 0), now - 1)
if id == '' then
  id = string.sub(redis.sha1hex(moment[1] .. '.' .. moment[2]), 1, 16)
  redis.call('HSET', 'towline:meta', 'id', id)
end
n = n + 1
redis.call('HSET', 'towline:meta', 'n', n, 't', digits(last_token + #KEYS))
local function allot()
  last_token = last_token + 1
  return last_token
end
"""

_AFTER = """
local lines, width = {id, digits(n), digits(now)}, (#ARGV - 1) / #KEYS
for place, key in ipairs(KEYS) do
  local first = 2 + (place - 1) * width
  lines[3 + place] = run(key, unpack(ARGV, first, first + width - 1))
end
return table.concat(lines, '\\n')
"""

Answer = tuple[int, str]
"""The store's time and the line that `run` returned."""


class _AsWritten:
    """Around the reading of a line: one that no script of ours returns is told as one error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and issubclass(kind, _MISREAD) and not issubclass(kind, TowlineError):
            raise Rejected("Redis holds under our keys what Towline did not write") from None


_MISREAD = (ValueError, TypeError, IndexError)
AS_WRITTEN = _AsWritten()


class _Batch:
    """Calls that travel together."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.calls: list[tuple[str, tuple[str | int, ...], asyncio.Future[Answer]]] = []

    def words(self, shift_us: int) -> list[str | int]:
        words: list[str | int] = [len(self.calls)]
        words.extend(key for key, _, _ in self.calls)
        words.append(shift_us)
        for _, args, _ in self.calls:
            words.extend(args)
        return words

    def succeed(self, now: int, lines: list[str]) -> None:
        for (_, _, future), line in zip(self.calls, lines, strict=True):
            if not future.done():
                future.set_result((now, line))

    def fail(self, error: BaseException) -> None:
        for _, _, future in self.calls:
            if not future.done():
                future.set_exception(error)

    def apart(self) -> list[_Batch]:
        batches = []
        for call in self.calls:
            batch = _Batch(self.started)
            batch.calls.append(call)
            batches.append(batch)
        return batches


class Script:
    """`now, answer = await script(key, …)`; every call passes the same number of arguments."""

    def __init__(self, redis: Redis, body: str, *, writes: bool) -> None:
        self._redis = redis
        self._source = _BEFORE + (_BEFORE_WRITING if writes else "") + body + _AFTER
        self._digest = hashlib.sha1(self._source.encode(), usedforsecurity=False).hexdigest()
        self._boarding: _Batch | None = None
        self._second_tries: set[asyncio.Task[None]] = set()

    def __call__(self, key: str, *args: str | int) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        batch = self._boarding
        if batch is None:
            batch = self._boarding = _Batch(loop.time())
            loop.call_soon(self._depart, batch)
        batch.calls.append((key, args, future))
        if len(batch.calls) == _FULL_BATCH:
            self._boarding = None
        return future

    def _depart(self, batch: _Batch) -> None:
        if self._boarding is batch:
            self._boarding = None
        batch.calls = [call for call in batch.calls if not call[2].cancelled()]
        if not batch.calls:
            return
        if self._redis.connection is None:
            self._try_again(batch, may_repeat=True)
            return
        try:
            sent = self._send(self._redis.connection, batch, "EVALSHA", self._digest)
        except Exception as error:
            self._fail(batch, error)
        else:
            sent.add_done_callback(lambda reply: self._landed(batch, reply))

    def _send(
        self, connection: Multiplexer, batch: _Batch, verb: str, script: str
    ) -> asyncio.Future[Any]:
        def arrived(reply: str) -> None:
            mark, count, now, *lines = reply.split("\n")
            self._redis.witness(mark, int(count))
            batch.succeed(int(now), lines)

        return connection.send(
            pack(verb, script, *batch.words(self._redis.clock.shift_us())), arrived, at_once=True
        )

    def _landed(self, batch: _Batch, reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if isinstance(error, (Lost, NotAuthenticated, ReadOnly)):
            self._try_again(batch, may_repeat=False)
        elif isinstance(error, NoScript):
            self._try_again(batch, may_repeat=True)
        elif error is not None:
            self._fail(batch, error)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        """One bad call must not fail its neighbours: each travels again alone."""
        if isinstance(error, Rejected) and len(batch.calls) > 1:
            for single in batch.apart():
                self._try_again(single, may_repeat=False)
        else:
            batch.fail(error)

    def _try_again(self, batch: _Batch, may_repeat: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._insist(batch, may_repeat))
        self._second_tries.add(task)
        task.add_done_callback(self._second_tries.discard)

    async def _insist(self, batch: _Batch, may_repeat: bool) -> None:
        """Connect if need be, and send the whole source, which the server then knows."""
        redis = self._redis
        try:
            async with redis.until(batch.started + redis.timeout):
                try:
                    await self._send(await redis.connected(), batch, "EVAL", self._source)
                except Lost:
                    if not may_repeat:
                        raise
                    await self._send(await redis.connected(), batch, "EVAL", self._source)
        except TowlineError as error:
            self._fail(batch, error)
        except BaseException as error:
            batch.fail(error)
            raise
