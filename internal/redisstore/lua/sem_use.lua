-- sem_use.lua: note that the owner of a permit lives, and change nothing else. The script is for a
-- slot that moves.
--
-- KEYS: uses U
-- ARGV: token · ms for which the permit lasts
-- returns: "1", or "0" when the token has no permit
-- idempotent: a second execution changes nothing but the expiry of U, which it only lengthens.
-- first write: PEXPIRE, which a full server accepts, and the HSET after it.
local use = redis.call('HGET', KEYS[1], ARGV[1])
if not use then
  return '0'
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2] + 60000))
local confirmed, n = string.gsub(use, '^(%d+|%d+|%d+|%d+)|1|', '%1|0|')
if n == 1 then
  redis.call('HSET', KEYS[1], ARGV[1], confirmed)
end
return '1'
