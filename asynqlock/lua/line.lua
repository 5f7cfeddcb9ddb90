-- line.lua: put a task into the line of a key, or call the first task of the line.
-- KEYS: the line, a sorted set of tasks by arrival · the task that was called last
-- ARGV: task, "" for a call · arrival of the task in µs · time to live of the line in ms · time to
--   live of a call in ms · ms after which a task may be called again
-- returns: {first task, "" for none · ms since it was called, -1 for never · 1 if ARGV[1] is new ·
--   second task, "" for none}
-- first write: ZADD or SET. When a full server refuses it, nothing has happened.
-- idempotent: a second execution finds the task in its place, or called.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local new = 0
if ARGV[1] ~= '' then
  -- A process whose clock is wrong must not push its tasks before or behind those of others.
  local arrival = math.min(now, math.max(now - 1000000, tonumber(ARGV[2])))
  new = redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', arrival), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local line = redis.call('ZRANGE', KEYS[1], 0, 1)
local first = line[1] or ''
local since = -1
if first ~= '' and redis.call('GET', KEYS[2]) == first then
  since = ARGV[4] - redis.call('PTTL', KEYS[2])
end
if ARGV[1] == '' and first ~= '' and (since < 0 or since >= tonumber(ARGV[5])) then
  redis.call('SET', KEYS[2], first, 'PX', ARGV[4])
end
return {first, since, new, line[2] or ''}
