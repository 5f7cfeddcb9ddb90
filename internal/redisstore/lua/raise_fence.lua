-- raise_fence.lua: make the fence counter at least as large as a given value.
--
-- KEYS: fence counter C
-- ARGV: the least value
-- returns: the counter's value, as a string
-- idempotent: it never lowers the counter.
-- first write: SET C. When a full server refuses it, nothing has happened.
local counter = redis.call('GET', KEYS[1]) or '0'
if (tonumber(counter) or 0) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  counter = ARGV[1]
end
return counter
