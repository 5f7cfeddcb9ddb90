-- rw_inspect.lua: return the holder of a lease, how many read, and how many wait for it.
--
-- KEYS: lease L · queue Q · readers R
-- ARGV: none
-- returns: server-µs PTTL waiters readers L, as one string; L is "" when it is free
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local lease = redis.call('GET', KEYS[1]) or ''
local readers = 0
if string.sub(lease, 1, 7) == 'shared:' then
  readers = redis.call('ZCOUNT', KEYS[3], string.format('(%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)), '+inf')
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. redis.call('PTTL', KEYS[1]) .. ' ' ..
  redis.call('ZCOUNT', KEYS[2], '0', '+inf') .. ' ' .. readers .. ' ' .. lease
