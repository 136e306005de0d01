"""Leases in Redis, with their queues.

    towline:lease:NAME      the lease: holder, address, token, ticket, expiry (packed)
    towline:queue:NAME      who waits, by ticket
    towline:waiters:NAME    holder -> address, time to live, end of patience (packed)

A ticket is a token too, so later tickets are larger. A waiter leaves the queue when it is granted
the lease, so nobody is granted it twice by one place in the queue. A lease that is passed on
remembers which call did it: if the answer was lost, the repeated call gets the same answer, and
the new holder is still woken. Redis forgets names a day after they were last used; tokens grow
all the same, for they come from one counter.
"""

from __future__ import annotations

import orjson

from towline.ports.coordination import Grant
from towline.store.redis import Redis
from towline.store.redis_script import AS_WRITTEN

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
