-- sem_part.lua: change when a permit runs out, and nothing else. The script is for a slot that
-- moves.
--
-- KEYS: permits P
-- ARGV: token · ms from now at which the permit runs out · "1" when the script may only lengthen it
-- returns: "1", or "0" when the token has no permit
-- idempotent: a second execution sets the same expiry, or a later one. The script never makes a
--   permit. Even a permit that has run out stays in P, because P and U must have the same size; a
--   later script takes it back.
-- first write: PEXPIRE, which a full server accepts, and the ZADD after it. A replica may return
--   "0", so the caller then examines L in a step that a replica refuses.
local clock = redis.call('TIME')
local now, ms = clock[1] * 1000 + math.floor(clock[2] / 1000), tonumber(ARGV[2])
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return '0'
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ms + 60000))
if ARGV[3] == '1' then
  redis.call('ZADD', KEYS[1], 'XX', 'GT', string.format('%.0f', now + ms), ARGV[1])
else
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ms), ARGV[1])
end
return '1'
