"""Slots, marks, rates and documents in Redis, by the server's own time.

Times are stored in the values and compared by the scripts; Redis's own expiry is only the broom
for what nobody asks for any more. A call that cannot recognise its own earlier run by a holder
carries an id of its own, so that it may be repeated when its answer was lost.
"""

from __future__ import annotations

import orjson

from towline.coordination.redis_leases import RedisLeases
from towline.ports.coordination import Document, Paced
from towline.store.redis import Redis
from towline.store.redis_script import AS_WRITTEN

__all__ = ["RedisDocuments", "RedisLeases", "RedisRates", "RedisSeen", "RedisSlots"]

_SLOTS = """
local function tokens_of(key)
  return 'towline:slot-tokens:' .. string.sub(key, #'towline:slots:' + 1)
end

local function drop(key, holder)
  redis.call('ZREM', key, holder)
  redis.call('HDEL', tokens_of(key), holder)
end

-- How long a key of several holders is kept follows the longest of them.
local function hold(key, holder, ttl_us)
  redis.call('ZADD', key, digits(now + ttl_us), holder)
  local keep = math.ceil(ttl_us / 1000) + 3600 * 1000
  for _, name in ipairs({key, tokens_of(key)}) do
    if redis.call('PTTL', name) < keep then redis.call('PEXPIRE', name, digits(keep)) end
  end
end
"""

_TAKE_SLOT = """
local function run(key, limit, holder, ttl_us)
  for _, expired in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', digits(now))) do
    drop(key, expired)
  end
  local token = redis.call('HGET', tokens_of(key), holder)
  if token then return token end
  if redis.call('ZCARD', key) >= tonumber(limit) then return '' end
  token = digits(allot())
  redis.call('HSET', tokens_of(key), holder, token)
  hold(key, holder, ttl_us)
  return token
end
"""

_EXTEND_SLOT = """
local function run(key, holder, token, ttl_us)
  if redis.call('HGET', tokens_of(key), holder) ~= token then return '0' end
  hold(key, holder, ttl_us)
  return '1'
end
"""

_RELEASE_SLOT = """
local function run(key, holder, token)
  if redis.call('HGET', tokens_of(key), holder) ~= token then return '0' end
  drop(key, holder)
  return '1'
end
"""


class RedisSlots:
    def __init__(self, redis: Redis) -> None:
        self._take = redis.script(_SLOTS + _TAKE_SLOT)
        self._extend = redis.script(_SLOTS + _EXTEND_SLOT)
        self._release = redis.script(_SLOTS + _RELEASE_SLOT)

    async def take(self, name: str, limit: int, holder: str, ttl_us: int) -> int | None:
        _, token = await self._take(f"towline:slots:{name}", limit, holder, ttl_us)
        with AS_WRITTEN:
            return int(token) if token else None

    async def extend(self, name: str, holder: str, token: int, ttl_us: int) -> bool:
        _, extended = await self._extend(f"towline:slots:{name}", holder, token, ttl_us)
        return extended == "1"

    async def release(self, name: str, holder: str, token: int) -> bool:
        _, released = await self._release(f"towline:slots:{name}", holder, token)
        return released == "1"


_SEEN = """
local function seen(key)
  local mark = redis.call('GET', key)
  if not mark then return false end
  local till, call = string.match(mark, '^(%d+) (.*)$')
  return tonumber(till) > now, call
end

local function mark(key, ttl_us, call)
  local keep = math.ceil(ttl_us / 1000) + 60 * 1000
  redis.call('SET', key, digits(now + ttl_us) .. ' ' .. call, 'PX', digits(keep))
end
"""

_FIRST_TIME = """
local function run(key, ttl_us, call)
  local known, by = seen(key)
  if known then return by == call and '1' or '0' end
  mark(key, ttl_us, call)
  return '1'
end
"""

_MARK = """
local function run(key, ttl_us)
  mark(key, ttl_us, '')
  return ''
end
"""

_IS_SEEN = """
local function run(key)
  return seen(key) and '1' or '0'
end
"""


class RedisSeen:
    def __init__(self, redis: Redis) -> None:
        self._first_time = redis.script(_SEEN + _FIRST_TIME)
        self._mark = redis.script(_SEEN + _MARK)
        self._is_seen = redis.script(_SEEN + _IS_SEEN, writes=False)
        self._call_id = redis.call_id

    async def first_time(self, key: str, ttl_us: int) -> bool:
        _, first = await self._first_time(f"towline:seen:{key}", ttl_us, self._call_id())
        return first == "1"

    async def mark(self, key: str, ttl_us: int) -> None:
        await self._mark(f"towline:seen:{key}", ttl_us)

    async def is_seen(self, key: str) -> bool:
        _, is_seen = await self._is_seen(f"towline:seen:{key}")
        return is_seen == "1"

    async def sweep(self, limit: int) -> int:
        """Nothing to do: Redis forgets them by itself."""
        return 0


_HIT = """
local function run(key, hits, interval_us, burst_us)
  local arrival = tonumber(redis.call('GET', key) or 0)
  local start = math.max(arrival, now)
  local fitting = math.max(0, math.floor((now + burst_us - start) / interval_us))
  local allowed = math.min(hits, fitting)
  if allowed > 0 then
    arrival = start + allowed * interval_us
    local keep = math.ceil((arrival - now) / 1000) + 60 * 1000
    redis.call('SET', key, digits(arrival), 'PX', digits(keep))
  end
  return digits(allowed) .. ' ' .. digits(arrival)
end
"""


class RedisRates:
    """Repeated after a lost answer, a hit may count twice: it errs on the side of the limit."""

    def __init__(self, redis: Redis) -> None:
        self._hit = redis.script(_HIT)

    async def hit(self, key: str, hits: int, interval_us: int, burst_us: int) -> Paced:
        now, line = await self._hit(f"towline:rate:{key}", hits, interval_us, burst_us)
        with AS_WRITTEN:
            allowed, arrival = line.split()
            return Paced(int(allowed), int(arrival), now)

    async def sweep(self, limit: int) -> int:
        """Nothing to do: Redis forgets them by itself."""
        return 0


_READ_DOCUMENT = """
local function run(key)
  local found = redis.call('HMGET', key, 'version', 'body')
  return cjson.encode({found[1] or '0', found[2] or ''})
end
"""

_SWAP_DOCUMENT = """
local function run(key, version, body, call)
  local found = redis.call('HMGET', key, 'version', 'call')
  if found[2] == call then return '1' end
  if (found[1] or '0') ~= version then return '0' end
  redis.call('HSET', key, 'version', digits(version + 1), 'body', body, 'call', call)
  return '1'
end
"""


class RedisDocuments:
    def __init__(self, redis: Redis) -> None:
        self._read = redis.script(_READ_DOCUMENT, writes=False)
        self._swap = redis.script(_SWAP_DOCUMENT)
        self._call_id = redis.call_id

    async def read(self, name: str) -> Document:
        now, line = await self._read(f"towline:document:{name}")
        with AS_WRITTEN:
            version, body = orjson.loads(line)
            return Document(int(version), str(body), now)

    async def swap(self, name: str, version: int, body: str) -> Document | None:
        now, swapped = await self._swap(f"towline:document:{name}", version, body, self._call_id())
        return Document(version + 1, body, now) if swapped == "1" else None
