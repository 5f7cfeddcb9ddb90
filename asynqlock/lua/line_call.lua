-- line_call.lua: find the task at the front of a line, and record that the task is called.
-- KEYS: the line · the call
-- ARGV: time to live of the call in ms, "0" to record nothing
-- returns: {task, µs since it was called; 0 when it is called now, -1 when it was not called}, or
--   nil when the line is empty
-- first write: HSET. When a full server refuses it, nothing has happened.
-- idempotent: a second execution finds that the task is called already.
local front = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not front then
  return false
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if redis.call('HGET', KEYS[2], 'task') == front then
  return {front, now - redis.call('HGET', KEYS[2], 'at')}
end
if ARGV[1] == '0' then
  return {front, -1}
end
redis.call('HSET', KEYS[2], 'task', front, 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return {front, 0}
