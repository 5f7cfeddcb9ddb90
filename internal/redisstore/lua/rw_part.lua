-- rw_part.lua: lengthen a reader's part of a phase, and change nothing else. The script is for a
-- slot that moves.
--
-- KEYS: readers R
-- ARGV: the token's entry in R · ttl in ms
-- returns: "1", or "0" when the entry is missing, or has run out
-- idempotent: it sets expiries to at least ttl from now, never shortens an expiry, and never
--   creates a key or an entry. The caller must check afterwards which phase L names.
-- first write: PEXPIRE, which a full server accepts, and the ZADD after it. A replica may return
--   "0", so the caller then examines L in a step that a replica refuses.
local clock = redis.call('TIME')
local now, ttl = clock[1] * 1000 + math.floor(clock[2] / 1000), tonumber(ARGV[2])
local ends = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
if ends <= now then
  return '0'
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ttl))
redis.call('ZADD', KEYS[1], 'GT', string.format('%.0f', now + ttl), ARGV[1])
return '1'
