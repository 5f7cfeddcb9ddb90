-- sem_renew.lua: lengthen permits that their owners still hold.
--
-- KEYS: for each permit: lease L · queue Q · permits P · uses U
-- ARGV: for each permit: token · ttl in ms
-- returns: server-µs and, after a space, "1" or "0" for each permit in order: 1 the owner holds
--   it, 0 the owner does not; as one string, as in "1700000000000000 1101"
-- idempotent: it sets expiries to at least ttl from now. It never shortens an expiry, and never
--   makes a permit. It writes L again if L is missing while permits are held. A permit that has
--   run out counts as held until a script has taken it back.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. A full server accepts GETEX, and the ZADD after it. If a key has another
--   type, the answer for its permit is 0, because the error would end all other renewals.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answer = {}

-- whole returns the value of the token's permit in U, and the epoch, if P and U have the same
-- number of permits. L is KEYS[j].
local function whole(j, token)
  if redis.call('TYPE', KEYS[j + 2])['ok'] ~= 'zset' or redis.call('TYPE', KEYS[j + 3])['ok'] ~= 'hash' or
    redis.call('ZCARD', KEYS[j + 2]) + 1 ~= redis.call('HLEN', KEYS[j + 3]) then
    return nil
  end
  local found = redis.call('HMGET', KEYS[j + 3], token, '=')
  return found[1], string.match(found[2] or '', '^%d+|%d+|[01]|(%d+)|')
end

for i = 1, #KEYS / 4 do
  local j, token, ttl = 4 * i - 3, ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local kind = redis.call('TYPE', KEYS[j])['ok']
  local lease
  if kind == 'string' or kind == 'none' then
    lease = redis.call('GETEX', KEYS[j])
  end
  local shield = lease and string.sub(lease, 1, 8) == 'permits:'
  answer[i] = '0'
  if lease and string.sub(lease, 1, #token + 1) == token .. ':' then
    -- PEXPIRE is called even when it changes nothing, because WAIT covers only writes.
    redis.call('PEXPIRE', KEYS[j], math.max(redis.call('PTTL', KEYS[j]), ttl))
    if redis.call('TYPE', KEYS[j + 1])['ok'] == 'zset' then
      redis.call('ZREMRANGEBYSCORE', KEYS[j + 1], '-inf', '(0') -- this renewal confirms a lease that came by hand-off
    end
    answer[i] = '1'
  elseif shield or lease == false then
    local use, epoch = whole(j, token)
    if use and epoch then
      redis.call('ZADD', KEYS[j + 2], 'XX', 'GT', string.format('%.0f', now + ttl), token)
      local confirmed, n = string.gsub(use, '^(%d+|%d+|%d+|%d+)|1|', '%1|0|')
      if n == 1 then
        redis.call('HSET', KEYS[j + 3], token, confirmed)
      end
      local left = redis.call('ZRANGE', KEYS[j + 2], '-1', '-1', 'WITHSCORES')[2] - now
      local life = string.format('%.0f', left + 60000)
      if shield then
        redis.call('PEXPIRE', KEYS[j], string.format('%.0f', left))
      else
        redis.call('SET', KEYS[j], 'permits:' .. epoch .. ':1', 'PX', string.format('%.0f', left), 'NX')
      end
      redis.call('PEXPIRE', KEYS[j + 2], life)
      redis.call('PEXPIRE', KEYS[j + 3], life)
      answer[i] = '1'
    end
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. table.concat(answer)
