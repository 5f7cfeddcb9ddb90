-- acquire.lua: take the lease for a token, or say who has it.
--
-- KEYS: lease L · fence counter C · tombstone X of the token · done mark D
-- ARGV: token · ttl in ms · fences to reserve · "1" when the done mark counts, else "0" · metadata, may be ""
-- returns: {"granted", server µs, PTTL, L} · {"busy", server µs, PTTL, L} · {"undone", server µs}
--          {"revoked", server µs, reason} · {"done", server µs}
-- idempotent: a second execution finds L with the token in it, answers with the same L and at most lengthens it; after
--   an undo it finds X.
-- first write: GETEX of a held L, which changes nothing; SET C for a free one, which a full server refuses, and then
--   nothing has happened.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local tombstone = redis.call('GET', KEYS[3])
if tombstone then
  if string.sub(tombstone, 1, 8) == 'revoked:' then
    return {'revoked', now, string.sub(tombstone, 9)}
  end
  return {'undone', now}
end
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[4]) == 1 then
  return {'done', now}
end

-- GET, not GETEX: after a write of any kind a full server lets all others pass, and a new lease must be refused there.
local lease = redis.call('GET', KEYS[1])
if lease then
  redis.call('GETEX', KEYS[1]) -- changes nothing, but makes a lagging replica answer READONLY instead of a false "busy"
  local left = redis.call('PTTL', KEYS[1])
  local owner = ARGV[1] .. ':'
  if string.sub(lease, 1, #owner) ~= owner then
    return {'busy', now, left, lease}
  end
  if left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return {'granted', now, redis.call('PTTL', KEYS[1]), lease}
end

-- The fence: larger than every one before, and at least the server's clock, so that it grows even after the counter is
-- lost. A block may run ahead of the clock by 100 ms only; %.0f because Lua's tostring rounds microseconds.
local block = tonumber(ARGV[3])
local fence = math.max((tonumber(redis.call('GET', KEYS[2]) or '0') or 0) + 1, now)
if fence + block - 1 > now + 100000 then
  block = 1
end
lease = string.format('%s:%.0f:%.0f', ARGV[1], fence, block)
if ARGV[5] ~= '' then
  lease = lease .. ':' .. ARGV[5]
end
redis.call('SET', KEYS[2], string.format('%.0f', fence + block - 1))
redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
return {'granted', now, tonumber(ARGV[2]), lease}
