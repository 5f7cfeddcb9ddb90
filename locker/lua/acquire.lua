-- acquire.lua: take the lease for a token, or say who has it.
--
-- KEYS: lease L · fence counter C · tombstone X of the token · done mark D
-- ARGV: token · ttl in ms · fences to reserve · "1" when the done mark counts, else "0" · metadata, may be ""
-- returns: "granted" server-µs PTTL L · "busy" server-µs PTTL L · "undone" server-µs · "revoked" server-µs reason
--          "done" server-µs; words with a space between, as one string, which is read without taking it apart
-- idempotent: a second execution finds L with the token in it, answers with the same L and at most lengthens it; after
--   an undo it finds X.
-- first write: GETEX of a held L, which changes nothing; SET C for a free one, which a full server refuses, and then
--   nothing has happened.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local at = string.format(' %.0f ', now)

-- One MGET, not three GETs; it reads data of another type as missing, which the SET NX at the end finds out.
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local lease, counter, tombstone = found[1], found[2], found[3]
if tombstone then
  if string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked' .. at .. string.sub(tombstone, 9)
  end
  return 'undone' .. at
end
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[4]) == 1 then
  return 'done' .. at
end

if lease then
  -- GETEX changes nothing, but makes a lagging replica answer READONLY instead of a false "busy". Not before: after a write
  -- of any kind a full server lets all others pass, and there a new lease must be refused.
  redis.call('GETEX', KEYS[1])
  local left = redis.call('PTTL', KEYS[1])
  local owner = ARGV[1] .. ':'
  if string.sub(lease, 1, #owner) ~= owner then
    return 'busy' .. at .. left .. ' ' .. lease
  end
  if left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 'granted' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
end

-- The fence: larger than every one before, and at least the server's clock, so that it grows even after the counter is
-- lost. A block may run ahead of the clock by 100 ms only; %.0f because Lua's tostring rounds microseconds.
local block = tonumber(ARGV[3])
local fence = math.max((tonumber(counter or '0') or 0) + 1, now)
if fence + block - 1 > now + 100000 then
  block = 1
end
lease = string.format('%s:%.0f:%.0f', ARGV[1], fence, block)
if ARGV[5] ~= '' then
  lease = lease .. ':' .. ARGV[5]
end
redis.call('SET', KEYS[2], string.format('%.0f', fence + block - 1))
if not redis.call('SET', KEYS[1], lease, 'PX', ARGV[2], 'NX') then
  return redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
end
return 'granted' .. at .. ARGV[2] .. ' ' .. lease
