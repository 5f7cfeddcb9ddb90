-- inspect.lua: return the holder of a lease, and the number of its waiters.
--
-- KEYS: lease L · queue Q
-- ARGV: none
-- returns: server-µs PTTL waiters L, as one string; L is "" when the key is free
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local at = string.format('%.0f ', clock[1] * 1000000 + clock[2])
local waiters = redis.call('ZCOUNT', KEYS[2], '0', '+inf')
return at .. redis.call('PTTL', KEYS[1]) .. ' ' .. waiters .. ' ' .. (redis.call('GET', KEYS[1]) or '')
