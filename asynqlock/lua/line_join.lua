-- line_join.lua: give a task its place in the line of a lock's key. The place follows from the
-- time at which the task arrived.
-- KEYS: the line, a sorted set of tasks by arrival · the call, a hash: the task called last, when,
--   and whether it has come to a worker
-- ARGV: task · time of arrival, in µs (server's clock) · time to live of the line in ms · "1" when
--   the task is put off now, "0" when it asks
-- returns: {place, where 0 is the front · 1 when the task had its place before, otherwise 0 · µs
--   since the task at the front was called, -1 when it was not called · µs for which the line is
--   late, or 0 · the task at the front}
-- first write: ZADD. When a full server refuses it, nothing has happened.
-- idempotent: a second execution finds the task in its place.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrived = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], arrived or ARGV[2], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end

local front = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
local called, late = redis.call('HGET', KEYS[2], 'task'), redis.call('HGET', KEYS[2], 'late')
if called == ARGV[1] then
  if ARGV[4] == '1' then
    redis.call('HDEL', KEYS[2], 'task', 'at', 'came') -- the called task has found the key busy
    called = false
  else
    redis.call('HSET', KEYS[2], 'came', '1')
  end
end
local since = -1
if called and called == front then
  since = now - redis.call('HGET', KEYS[2], 'at')
end
return {redis.call('ZRANK', KEYS[1], ARGV[1]), arrived and 1 or 0, since, math.max((late or 0) - now, 0), front}
