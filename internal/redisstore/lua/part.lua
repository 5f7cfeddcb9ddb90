-- part.lua: change how long a reader's part of a phase or a permit lasts, in one of its keys, and
-- change nothing else. The script is for a slot that moves.
--
-- KEYS: readers R, permits P, or uses U
-- ARGV: the token's entry in R, or the token · ms from now at which the part or the permit ends ·
--   how it changes: "read": a reader's part, which is only lengthened, "lengthen": a permit, which
--   is only lengthened, "end": a permit, which may also be shortened
-- returns: "1", or "0" when the entry is missing, or is a reader's and has run out
-- idempotent: a second execution sets the same expiry, or a later one. The script makes no entry. A
--   permit that has run out stays in P, because P and U must have the same size; a later script
--   takes it back. The caller must check afterwards which phase L names.
-- first write: PEXPIRE, which a full server accepts, and the ZADD or HSET after it. A replica may
--   return "0", so the caller then examines L in a step that a replica refuses.
local clock = redis.call('TIME')
local now, ms = clock[1] * 1000 + math.floor(clock[2] / 1000), tonumber(ARGV[2])
local hash = redis.call('TYPE', KEYS[1])['ok'] == 'hash'
local found = hash and redis.call('HGET', KEYS[1], ARGV[1]) or not hash and redis.call('ZSCORE', KEYS[1], ARGV[1])
if not found or ARGV[3] == 'read' and tonumber(found) <= now then
  return '0'
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[3] == 'read' and ms or ms + 60000))
if hash then
  local confirmed, n = string.gsub(found, '^(%d+|%d+|%d+|%d+)|1|', '%1|0|')
  if n == 1 then
    redis.call('HSET', KEYS[1], ARGV[1], confirmed) -- the owner lives, so its permit is confirmed
  end
elseif ARGV[3] == 'end' then
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ms), ARGV[1])
else
  redis.call('ZADD', KEYS[1], 'XX', 'GT', string.format('%.0f', now + ms), ARGV[1])
end
return '1'
