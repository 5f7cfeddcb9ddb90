-- line_leave.lua: take a task out of a line, because the task runs, is gone, or does not come. If
-- the task was called long ago and has not come, the line is late for a while.
-- KEYS: the line · the call
-- ARGV: task · µs after its call from which the task is late · µs for which the line is late then
-- returns: how many tasks are left in the line
-- first write: ZREM, which a full server does not refuse. A full server may refuse the later HSET,
--   and then the line does not count as late.
-- idempotent: a second execution does not find the task.
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('HGET', KEYS[2], 'task') == ARGV[1] then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local at, came = redis.call('HGET', KEYS[2], 'at'), redis.call('HGET', KEYS[2], 'came')
  redis.call('HDEL', KEYS[2], 'task', 'at', 'came')
  if not came and now - at > tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[2], 'late', string.format('%.0f', now + ARGV[3]))
    redis.call('PEXPIRE', KEYS[2], math.ceil(ARGV[3] / 1000))
  end
end
return redis.call('ZCARD', KEYS[1])
