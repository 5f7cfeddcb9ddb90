-- inspect.lua: say who holds a lease.
--
-- KEYS: lease L
-- ARGV: none
-- returns: server-µs PTTL L, as one string; L is "" when it is free
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local at = string.format('%.0f ', clock[1] * 1000000 + clock[2])
return at .. redis.call('PTTL', KEYS[1]) .. ' ' .. (redis.call('GET', KEYS[1]) or '')
