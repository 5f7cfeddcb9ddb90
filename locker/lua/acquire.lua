-- acquire.lua: take the lease for a token, or say who has it.
--
-- KEYS: lease L · fence counter C · tombstone X of the token · done mark D
-- ARGV: token · ttl in ms · fences to reserve · "1" when the done mark counts, else "0" · metadata, may be ""
-- returns: {"granted", server µs, PTTL, L} · {"busy", server µs, PTTL, L} · {"undone", server µs}
--          {"revoked", server µs, reason} · {"done", server µs}
-- idempotent: a second execution finds L with the token in it, answers with the same L and at most lengthens it; after
--   an undo it finds X.
-- first write: PEXPIRE when L is ours, else SET C; both harmless alone, so memory may refuse what follows.
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

-- GETEX writes nothing here, but a replica refuses it: a lagging one must not say "busy" or "free".
local lease = redis.call('GETEX', KEYS[1])
if lease then
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
