"""Idempotency records in Redis: one packed value per record, and an index by expiry.

A record is the array of `towline_once.idempotency.state.Record` without tenant and key, plus the
addresses that wait for it, packed by Lua (cmsgpack). The scripts compare token and status, take the
time from the server, and merge what a change leaves open; every decision stays in
`towline_once.idempotency.state`.

The sorted set `towline:idem:index` scores each record by its expiry. It counts the records,
yields the expired ones to `sweep` and the next to go to `evict`. Redis's own expiry is only the
last broom, for records that are not swept: it comes an hour after the record expired.

A key is stored as `towline:idem:<length of tenant>:<tenant>:<key>`: with the length in front, no
two pairs of tenant and key give one name, whatever characters they hold.
"""

from __future__ import annotations

import secrets
from typing import Any

import orjson

from towline_once.db.redis.client import AS_WRITTEN, Redis
from towline_once.idempotency.state import FOREVER_US, Change, Draft, Record, Result
from towline_once.idempotency.store import Put, Swapped

_PREFIX = "towline:idem:"
_INDEX = f"{_PREFIX}index"
_LARGE_NUMBERS = (2, 13, 14, 15, 16)
"""Times and tokens, which the scripts show as text: Lua's JSON would round them."""
_WINDOW = 200
"""Records that one script of upkeep looks at, so that no claim waits long behind it."""

_NAMES = f"""
local INDEX, FOREVER = '{_INDEX}', {FOREVER_US}
"""

_RECORDS = """
local BROOM_MS, AWAITED_BYTES = 3600 * 1000, 2000
local SOURCE, STATUS, TOKEN, HOLDER, ATTEMPTS, HASH, DIGESTS = 1, 2, 3, 4, 5, 6, 7
local RESPONSE, TOMBSTONE, RUN_ID, ERROR, DEFINITIVE, ON_CRASH = 8, 9, 10, 11, 12, 13
local CREATED, UPDATED, LOCK_EXPIRES, EXPIRES, AWAITED = 14, 15, 16, 17, 18

local function load(key)
  local packed = redis.call('GET', key)
  return packed and cmsgpack.unpack(packed)
end

local function show(record)
  for _, place in ipairs({TOKEN, CREATED, UPDATED, LOCK_EXPIRES, EXPIRES}) do
    record[place] = digits(record[place])
  end
  return cjson.encode(record)
end

local function store(key, record, keep_us)
  if tonumber(keep_us) < FOREVER then
    local broom = math.ceil(keep_us / 1000) + BROOM_MS
    redis.call('SET', key, cmsgpack.pack(record), 'PX', broom)
  else
    redis.call('SET', key, cmsgpack.pack(record))
  end
  redis.call('ZADD', INDEX, record[EXPIRES], key)
end

local function drop(key)
  redis.call('DEL', key)
  redis.call('ZREM', INDEX, key)
end
"""

_PUT = """
local function run(key, lock_us, keep_us, source, holder, hash, digests, on_crash)
  local found = load(key)
  if found then return show(found) end
  local token = allot()
  store(key, {
    source, 'processing', token, holder, 1, hash, digests,
    false, 0, false, false, 0, on_crash,
    now, now, now + lock_us, now + keep_us, ''
  }, keep_us)
  return digits(token)
end
"""

_EITHER = """
-- A text that is given has a '=' in front, so that an empty one differs from none.
local function either(given, otherwise)
  if given == '' then return otherwise end
  return string.sub(given, 2)
end
"""

_SETTLE = """
local function run(key, token, status, tombstone, definitive, keep_us, response, run_id, error)
  local record = load(key)
  if not record or record[TOKEN] ~= tonumber(token) or record[STATUS] ~= 'processing' then
    return ''
  end
  record[STATUS] = status
  record[RESPONSE], record[TOMBSTONE] = either(response, false), tonumber(tombstone)
  record[RUN_ID] = either(run_id, record[RUN_ID])
  record[ERROR] = status ~= 'completed' and either(error, record[ERROR])
  record[DEFINITIVE] = tonumber(definitive)
  record[UPDATED], record[LOCK_EXPIRES], record[EXPIRES] = now, now, now + keep_us
  local awaited = record[AWAITED]
  record[AWAITED] = ''
  store(key, record, keep_us)
  return digits(record[TOKEN]) .. ' ' .. awaited
end
"""

_SWAP = """
local function run(key, token, expect, status, bump, fresh, lock_us, keep_us, tombstone,
    definitive, response, run_id, error, attempts, holder, hash, digests, on_crash)
  local record = load(key)
  if not record or record[TOKEN] ~= tonumber(token) or record[STATUS] ~= expect then
    return ''
  end
  fresh = fresh == '1'
  if bump == '1' then record[TOKEN] = allot() end
  if fresh then record[CREATED] = now end
  record[STATUS] = status
  record[HOLDER] = either(holder, record[HOLDER])
  record[ATTEMPTS] = tonumber(either(attempts, record[ATTEMPTS]))
  record[HASH] = either(hash, record[HASH])
  record[DIGESTS] = either(digests, record[DIGESTS])
  record[RESPONSE], record[TOMBSTONE] = either(response, false), tonumber(tombstone)
  record[RUN_ID] = either(run_id, not fresh and record[RUN_ID])
  record[ERROR] = not fresh and status ~= 'completed' and either(error, record[ERROR])
  record[DEFINITIVE] = tonumber(definitive)
  record[ON_CRASH] = either(on_crash, record[ON_CRASH])
  record[UPDATED], record[LOCK_EXPIRES], record[EXPIRES] = now, now + lock_us, now + keep_us
  local awaited = ''
  if status ~= 'processing' then awaited, record[AWAITED] = record[AWAITED], '' end
  store(key, record, keep_us)
  return digits(record[TOKEN]) .. ' ' .. awaited
end
"""

_READ = """
local function run(key)
  local found = load(key)
  return found and show(found) or ''
end
"""

_ATTACH = """
local function run(key, token, address)
  local record = load(key)
  if not record or record[TOKEN] ~= tonumber(token) or record[STATUS] ~= 'processing' then
    return '0'
  end
  local awaited = record[AWAITED]
  local known = string.find(' ' .. awaited .. ' ', ' ' .. address .. ' ', 1, true)
  if not known and #awaited < AWAITED_BYTES then
    record[AWAITED] = awaited == '' and address or awaited .. ' ' .. address
    redis.call('SET', key, cmsgpack.pack(record), 'KEEPTTL')
  end
  return '1'
end
"""

_SWEEP = """
local function run(index, limit)
  local expired = redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, limit)
  local dropped = 0
  for _, key in ipairs(expired) do
    local record = load(key)
    if record and record[STATUS] == 'parked' then
      redis.call('ZADD', index, now + FOREVER, key)
    elseif record and record[STATUS] == 'processing' and record[LOCK_EXPIRES] > now then
      redis.call('ZADD', index, record[LOCK_EXPIRES], key)
    else
      drop(key)
      dropped = dropped + 1
    end
  end
  return dropped .. ' ' .. #expired
end
"""

_EVICT = """
local function run(index, first, window, wanted)
  local dropped, passed = 0, 0
  for _, key in ipairs(redis.call('ZRANGE', index, first, first + window - 1)) do
    if dropped == tonumber(wanted) then break end
    local record = load(key)
    if record and record[STATUS] ~= 'completed' and record[STATUS] ~= 'failed' then
      passed = passed + 1
    else
      drop(key)
      dropped = dropped + 1
    end
  end
  return dropped .. ' ' .. passed
end
"""

_DIGEST_KEY = """
local function run(key, proposed)
  redis.call('SETNX', key, proposed)
  return redis.call('GET', key)
end
"""


class RedisRecords:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._put = redis.script(_NAMES + _RECORDS + _PUT)
        self._settle = redis.script(_NAMES + _RECORDS + _EITHER + _SETTLE)
        self._swap = redis.script(_NAMES + _RECORDS + _EITHER + _SWAP)
        self._read = redis.script(_NAMES + _RECORDS + _READ, writes=False)
        self._attach = redis.script(_NAMES + _RECORDS + _ATTACH)
        self._sweep = redis.script(_NAMES + _RECORDS + _SWEEP)
        self._evict = redis.script(_NAMES + _RECORDS + _EVICT)
        self._digest_key = redis.script(_DIGEST_KEY)

    async def put(self, draft: Draft) -> Put:
        tenant, key, source, holder, payload_hash, digests, on_crash, lock_us, keep_us = draft
        now, found = await self._put(
            _place(tenant, key), lock_us, keep_us, source, holder, payload_hash, digests, on_crash
        )
        if found.isdecimal():
            with AS_WRITTEN:
                return Put(int(found), None, now)
        return Put(None, _record(tenant, key, found), now)

    async def swap(self, change: Change) -> Swapped | None:
        (
            tenant, key, token, expect, status, bump, attempts, holder, payload_hash, digests,
            response, tombstone, run_id, error, definitive, on_crash, lock_us, keep_us, fresh,
        ) = change  # fmt: skip
        _, swapped = await self._swap(
            _place(tenant, key), token, expect, status, bump, fresh, lock_us, keep_us, tombstone,
            definitive, _given(response), _given(run_id), _given(error), _given(attempts),
            _given(holder), _given(payload_hash), _given(digests), _given(on_crash),
        )  # fmt: skip
        return _swapped(swapped)

    async def settle(self, result: Result) -> Swapped | None:
        (
            tenant, key, token, status, response, tombstone, run_id, error, definitive, keep_us,
        ) = result  # fmt: skip
        _, swapped = await self._settle(
            _place(tenant, key), token, status, tombstone, definitive, keep_us,
            _given(response), _given(run_id), _given(error),
        )  # fmt: skip
        return _swapped(swapped)

    async def read(self, tenant: str, key: str) -> Put:
        now, found = await self._read(_place(tenant, key))
        return Put(None, _record(tenant, key, found) if found else None, now)

    async def attach(self, tenant: str, key: str, token: int, address: str) -> bool:
        _, attached = await self._attach(_place(tenant, key), token, address)
        return attached == "1"

    async def sweep(self, limit: int) -> int:
        swept = 0
        while swept < limit:
            window = min(_WINDOW, limit - swept)
            _, counts = await self._sweep(_INDEX, window)
            dropped, looked_at = map(int, counts.split())
            swept += dropped
            if looked_at < window:
                break
        return swept

    async def evict(self, count: int) -> int:
        evicted = first = 0
        while evicted < count:
            _, counts = await self._evict(_INDEX, first, _WINDOW, count - evicted)
            dropped, passed = map(int, counts.split())
            evicted += dropped
            first += passed
            if dropped + passed < _WINDOW:
                break
        return evicted

    async def size(self) -> int:
        return int(await self._redis.call("ZCARD", _INDEX))

    async def digest_key(self) -> bytes:
        _, key = await self._digest_key("towline:digest-key", secrets.token_hex(32))
        with AS_WRITTEN:
            return bytes.fromhex(key)

    async def aclose(self) -> None:
        """The connection belongs to the caller that made it."""


def _place(tenant: str, key: str) -> str:
    return f"{_PREFIX}{len(tenant)}:{tenant}:{key}"


def _swapped(line: str) -> Swapped | None:
    if not line:
        return None
    token, _, awaited = line.partition(" ")
    with AS_WRITTEN:
        return Swapped(int(token), awaited)


def _record(tenant: str, key: str, line: str) -> Record:
    with AS_WRITTEN:
        stored = orjson.loads(line)[:17]
        fields: list[Any] = [None if value is False else value for value in stored]
        for place in _LARGE_NUMBERS:
            fields[place] = int(fields[place])
        return Record(tenant, key, *fields)


def _given(value: str | int | None) -> str:
    return "" if value is None else f"={value}"
