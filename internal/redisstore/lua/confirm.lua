-- confirm.lua: lengthen leases, readers' parts of shared leases, and permits, that their owners
-- still hold. A renewal shows that the owner lives, so the script also confirms a hand-off: it
-- removes the owner's entry from the queue, or the note in the permit. renew.lua is for leases
-- that need no confirmation and have no readers and no permits.
--
-- KEYS: for each lease: lease L · queue Q · [readers R, or permits P · uses U]
-- ARGV: for each lease: token, which a Store with readers gives as token|inbox|fence, the token's
--   entry in R and the fence of its phase · ttl in ms
-- returns: server-µs and, after a space, for each lease in order "1" when the owner holds it, "2"
--   when the owner is a reader and a writer waits, "0" when the owner does not hold it; as one
--   string, as in "1700000000000000 1120"
-- idempotent: it sets expiries to at least ttl from now, and removes entries. A second execution
--   finds these entries removed. It never shortens an expiry, and makes no entry. It makes a key
--   only when L is missing while permits are held: then it writes L again. A reader does not hold L
--   of another phase, even if R has an entry for the reader. A permit that has run out counts as
--   held until a script has taken it back.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. A full server accepts GETEX, and the ZADD after it. Data that is no string
--   gets no GETEX, and a companion key of another type gets no command, because the error would end
--   all other renewals.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local count = #ARGV / 2
local each = #KEYS / count -- the number of keys of one lease: 2, with readers 3, with permits 4

local function is(i, kind)
  return redis.call('TYPE', KEYS[i])['ok'] == kind
end

-- PEXPIRE is called even when it changes nothing, because WAIT covers only writes.
local function lengthen(i, ms)
  redis.call('PEXPIRE', KEYS[i], math.max(redis.call('PTTL', KEYS[i]), ms))
end

-- reads lengthens a reader's part. The key of L is KEYS[i].
local function reads(i, lease, owner, ttl)
  local member, fence = string.match(owner, '^(.*)|(%d+)$')
  local phase = 'shared:' .. fence .. ':'
  if string.sub(lease, 1, #phase) ~= phase or not is(i + 2, 'zset') or
    tonumber(redis.call('ZSCORE', KEYS[i + 2], member) or '0') <= now then
    return '0'
  end
  redis.call('ZADD', KEYS[i + 2], 'GT', string.format('%.0f', now + ttl), member)
  lengthen(i + 2, ttl)
  lengthen(i, ttl)
  return is(i + 1, 'zset') and '2' or '1'
end

-- holds lengthens a permit, if P and U have the same number of permits. The key of L is KEYS[i].
local function holds(i, lease, token, ttl)
  if not is(i + 2, 'zset') or not is(i + 3, 'hash') or
    redis.call('ZCARD', KEYS[i + 2]) + 1 ~= redis.call('HLEN', KEYS[i + 3]) then
    return '0'
  end
  local found = redis.call('HMGET', KEYS[i + 3], token, '=')
  local use, epoch = found[1], string.match(found[2] or '', '^%d+|%d+|[01]|(%d+)|')
  if not use or not epoch then
    return '0'
  end
  redis.call('ZADD', KEYS[i + 2], 'XX', 'GT', string.format('%.0f', now + ttl), token)
  local confirmed, n = string.gsub(use, '^(%d+|%d+|%d+|%d+)|1|', '%1|0|')
  if n == 1 then
    redis.call('HSET', KEYS[i + 3], token, confirmed)
  end
  local left = redis.call('ZRANGE', KEYS[i + 2], '-1', '-1', 'WITHSCORES')[2] - now
  if lease then
    redis.call('PEXPIRE', KEYS[i], string.format('%.0f', left))
  else
    redis.call('SET', KEYS[i], 'permits:' .. epoch .. ':1', 'PX', string.format('%.0f', left), 'NX')
  end
  redis.call('PEXPIRE', KEYS[i + 2], string.format('%.0f', left + 60000))
  redis.call('PEXPIRE', KEYS[i + 3], string.format('%.0f', left + 60000))
  return '1'
end

local answer = {}
for n = 1, count do
  local i, owner, ttl = each * (n - 1) + 1, ARGV[2 * n - 1], tonumber(ARGV[2 * n])
  local token, kind = string.match(owner, '^[^|]*') .. ':', redis.call('TYPE', KEYS[i])['ok']
  local lease
  if kind == 'string' or kind == 'none' then
    lease = redis.call('GETEX', KEYS[i])
  end
  answer[n] = '0'
  if lease and string.sub(lease, 1, #token) == token then
    lengthen(i, ttl)
    if is(i + 1, 'zset') then
      redis.call('ZREMRANGEBYSCORE', KEYS[i + 1], '-inf', '(0')
    end
    answer[n] = '1'
  elseif each == 3 and lease then
    answer[n] = reads(i, lease, owner, ttl)
  elseif each == 4 and (lease == false or lease and string.sub(lease, 1, 8) == 'permits:') then
    answer[n] = holds(i, lease, owner, ttl)
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. table.concat(answer)
