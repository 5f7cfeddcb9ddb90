-- lines_forget.lua: remove a line that is empty from the index, unless a process has recorded since
-- then that it watches the line.
-- KEYS: the index
-- ARGV: line · the time until which it is watched, as lines_watch.lua has given it
-- returns: 1 when the line was removed, otherwise 0
-- first write: ZREM, which a full server does not refuse.
-- idempotent: a second execution finds no line.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
