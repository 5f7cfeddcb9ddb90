-- lines_watch.lua: record that a process watches lines, and give it the lines that no process
-- watches.
-- KEYS: the index, a sorted set of lines by the time until which a process watches them, in µs
-- ARGV: for each lease: line that the process watches, "" for none; then µs for which the lines are
--   watched · time to live of the index in ms · how many lines may be given
-- returns: {the time until which the given lines are watched, the given lines…}
-- first write: ZADD. When a full server refuses it, nothing has happened.
-- idempotent: a second execution only prolongs the watch, and gives other lines.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local n = #ARGV - 3
local till, ttl, most = string.format('%.0f', now + ARGV[n + 1]), tonumber(ARGV[n + 2]), tonumber(ARGV[n + 3])
for i = 1, n do
  if ARGV[i] ~= '' then
    redis.call('ZADD', KEYS[1], 'GT', till, ARGV[i])
  end
end
local given = {}
if most > 0 then
  given = redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, most)
end
for _, line in ipairs(given) do
  redis.call('ZADD', KEYS[1], till, line)
end
if redis.call('PTTL', KEYS[1]) < ttl then
  redis.call('PEXPIRE', KEYS[1], 2 * ttl)
end
table.insert(given, 1, till)
return given
