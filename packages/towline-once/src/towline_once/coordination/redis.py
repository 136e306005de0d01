"""Slots, marks, rates and documents in Redis, by the server's own time.

Times are stored in the values and compared by the scripts; Redis's own expiry is only the broom
for what is no longer asked for. A call that cannot recognise its own earlier run by a holder
carries an id of its own, so that it may be repeated when its answer was lost.
"""

from __future__ import annotations

import orjson

from towline_once.db.redis.client import AS_WRITTEN, Redis
from towline_once.ports import Document, Grant, Paced

# ------------------------------------------------------------------ leases
# Leases in Redis, with their queues.
#
#     towline:lease:NAME      the lease: holder, address, token, ticket, expiry (packed)
#     towline:queue:NAME      who waits, by ticket
#     towline:waiters:NAME    holder -> address, time to live, end of patience (packed)
#
# A ticket is a token too, so later tickets are larger. A waiter leaves the queue when it is
# granted
# the lease, so that it is not granted twice by one place in the queue. A lease that is passed on
# remembers which call did it: if the answer was lost, the repeated call gets the same answer, and
# the new holder is still woken. Redis forgets names a day after they were last used; tokens grow
# all the same, for they come from one counter.

_PREFIX = "towline:lease:"
_GRACE_US = 5_000_000

_LEASES = """
local DAY_MS = 86400 * 1000
local HOLDER, ADDRESS, TOKEN, TICKET, EXPIRES, PASSED_BY = 1, 2, 3, 4, 5, 6

local function load(key)
  local packed = redis.call('GET', key)
  return packed and cmsgpack.unpack(packed)
end

local function save(key, lease)
  local left = math.max(0, lease[EXPIRES] - now)
  redis.call('SET', key, cmsgpack.pack(lease), 'PX', digits(left / 1000 + DAY_MS))
end

local function show(lease)
  return cjson.encode({
    lease[HOLDER], lease[ADDRESS],
    digits(lease[TOKEN]), digits(lease[TICKET]), digits(lease[EXPIRES])
  })
end

local function queue_of(key)
  local name = string.sub(key, #'towline:lease:' + 1)
  return 'towline:queue:' .. name, 'towline:waiters:' .. name
end

local function remove(key, holder)
  local queue, waiters = queue_of(key)
  redis.call('ZREM', queue, holder)
  redis.call('HDEL', waiters, holder)
end

local function next_waiter(key)
  local queue, waiters = queue_of(key)
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    if not head[1] then return nil end
    local packed = redis.call('HGET', waiters, head[1])
    local address, ttl_us, patient_until = '', 0, 0
    if packed then address, ttl_us, patient_until = unpack(cmsgpack.unpack(packed)) end
    if patient_until > now then return head[1], tonumber(head[2]), address, ttl_us end
    remove(key, head[1])
  end
end
"""

_TAKE = """
local function run(key, holder, address, ttl_us)
  local lease = load(key)
  if lease and lease[EXPIRES] > now then
    return lease[HOLDER] == holder and show(lease) or ''
  end
  if next_waiter(key) then return '' end
  lease = {holder, address, allot(), lease and lease[TICKET] or 0, now + ttl_us, ''}
  save(key, lease)
  return show(lease)
end
"""

_ENQUEUE = """
local function run(key, holder, address, ttl_us, patience_us)
  local queue, waiters = queue_of(key)
  local lease = load(key)
  if lease and lease[HOLDER] == holder and lease[EXPIRES] > now then
    return digits(lease[TICKET])
  end
  local place = redis.call('ZSCORE', queue, holder)
  if place then return place end
  if not lease then save(key, {'', '', 0, 0, 0, ''}) end
  local ticket = digits(allot())
  local keep = digits(patience_us / 1000 + DAY_MS)
  redis.call('ZADD', queue, ticket, holder)
  redis.call('HSET', waiters, holder,
    cmsgpack.pack({address, tonumber(ttl_us), now + patience_us}))
  redis.call('PEXPIRE', queue, keep)
  redis.call('PEXPIRE', waiters, keep)
  return ticket
end
"""

_HAND_OVER = """
local function run(key, token, own_address, grace_us, call)
  local lease = load(key) or {'', '', 0, 0, 0, ''}
  if lease[PASSED_BY] == call then return show(lease) end
  if lease[TOKEN] ~= tonumber(token) and lease[EXPIRES] > now then return '' end
  local holder, ticket, address, ttl_us = next_waiter(key)
  if holder then
    remove(key, holder)
    if address ~= own_address then ttl_us = math.min(ttl_us, grace_us) end
    lease = {holder, address, allot(), ticket, now + ttl_us, call}
    save(key, lease)
  elseif lease[HOLDER] ~= '' then
    lease = {'', '', lease[TOKEN], lease[TICKET], 0, call}
    save(key, lease)
  end
  return show(lease)
end
"""

_EXTEND = """
local function run(key, token, ttl_us)
  local lease = load(key)
  if not lease or lease[TOKEN] ~= tonumber(token) or lease[HOLDER] == '' then return '0' end
  lease[EXPIRES] = now + ttl_us
  save(key, lease)
  return '1'
end
"""

_WITHDRAW = """
local function run(key, ticket)
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', queue_of(key), ticket, ticket)) do
    remove(key, holder)
  end
  return ''
end
"""

_PEEK = """
local function run(key)
  local lease = load(key)
  return lease and show(lease) or ''
end
"""


class RedisLeases:
    def __init__(self, redis: Redis) -> None:
        self._take = redis.script(_LEASES + _TAKE)
        self._enqueue = redis.script(_LEASES + _ENQUEUE)
        self._pass_on = redis.script(_LEASES + _HAND_OVER)
        self._extend = redis.script(_LEASES + _EXTEND)
        self._withdraw = redis.script(_LEASES + _WITHDRAW)
        self._peek = redis.script(_LEASES + _PEEK, writes=False)
        self._call_id = redis.call_id

    async def take(self, name: str, holder: str, address: str, ttl_us: int) -> Grant | None:
        return _grant(name, *await self._take(_PREFIX + name, holder, address, ttl_us))

    async def enqueue(
        self, name: str, holder: str, address: str, ttl_us: int, patience_us: int
    ) -> int:
        _, ticket = await self._enqueue(_PREFIX + name, holder, address, ttl_us, patience_us)
        with AS_WRITTEN:
            return int(ticket)

    async def pass_on(self, name: str, token: int, address: str) -> Grant | None:
        call = self._call_id()
        return _grant(name, *await self._pass_on(_PREFIX + name, token, address, _GRACE_US, call))

    async def extend(self, name: str, token: int, ttl_us: int) -> bool:
        _, extended = await self._extend(_PREFIX + name, token, ttl_us)
        return extended == "1"

    async def withdraw(self, name: str, ticket: int) -> None:
        await self._withdraw(_PREFIX + name, ticket)

    async def peek(self, name: str) -> Grant | None:
        return _grant(name, *await self._peek(_PREFIX + name))

    async def sweep(self, limit: int) -> int:
        """Nothing to do: Redis forgets them by itself."""
        return 0


def _grant(name: str, now: int, line: str) -> Grant | None:
    if not line:
        return None
    with AS_WRITTEN:
        holder, address, token, ticket, expires = orjson.loads(line)
        return Grant(name, str(holder), str(address), int(token), int(ticket), int(expires), now)


# ------------------------------------------------------------------ the other stores

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
