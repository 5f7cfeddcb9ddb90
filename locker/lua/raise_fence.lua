-- raise_fence.lua: make the fence counter at least as large as told.
--
-- KEYS: fence counter C
-- ARGV: the least value
-- returns: the counter's value
-- idempotent: it never lowers the counter.
-- first write: SET C; memory may refuse it, and then nothing has happened.
local counter = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
local least = tonumber(ARGV[1])
if counter < least then
  redis.call('SET', KEYS[1], ARGV[1])
  counter = least
end
return counter
