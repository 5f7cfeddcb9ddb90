-- rw_part.lua: make a reader's part of a phase last longer, and touch nothing else: for a slot that moves.
--
-- KEYS: readers R
-- ARGV: the token's entry in R · ttl in ms
-- returns: "1", or "0" when it is not there, or has run out
-- idempotent: it sets expiries to at least ttl from now, never shortens one, and never creates a key or an entry.
--   Which phase it is, L must say afterwards.
-- first write: PEXPIRE, which no full server refuses, nor the ZADD after it. "0" is no answer to a renewal: then L is asked, in a
--   step that says so when it runs on a replica.
local clock = redis.call('TIME')
local now, ttl = clock[1] * 1000 + math.floor(clock[2] / 1000), tonumber(ARGV[2])
local ends = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
if ends <= now then
  return '0'
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ttl))
redis.call('ZADD', KEYS[1], 'GT', string.format('%.0f', now + ttl), ARGV[1])
return '1'
