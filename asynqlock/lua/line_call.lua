-- line_call.lua: find the task at the front of a line, and record that the task is called.
-- KEYS: the line · the call
-- ARGV: time to live of the call in ms · µs that a called task has until it must take the key
-- returns: {task, µs since it was called; 0 when it is called now}, or nil when the line is empty
-- first write: HSET. When a full server refuses it, nothing has happened.
-- idempotent: a second execution finds that the task is called already.
local front = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not front then
  return false
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if redis.call('HGET', KEYS[2], 'task') == front then
  local since = now - redis.call('HGET', KEYS[2], 'at')
  -- A task that has come may have waited for a busy key since then. The key is free now, so its
  -- time begins again, but only once.
  if since < tonumber(ARGV[2]) or redis.call('HDEL', KEYS[2], 'came') == 0 then
    return {front, since}
  end
end
redis.call('HSET', KEYS[2], 'task', front, 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return {front, 0}
