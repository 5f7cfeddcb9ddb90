-- rw_downgrade.lua: make a writer the first reader of a phase, and let in all waiting readers.
--
-- KEYS: lease L · queue Q · fence counter C · readers R
-- ARGV: token · ttl in ms · the token's entry in R · fence of the phase, taken from the writer's
--   block
-- returns: "1" server-µs writers, where writers is "1" when a writer waits · "0" server-µs when
--   the token neither holds L nor is a reader of that phase
-- idempotent: a second execution finds the token among the readers of that phase, and at most
--   lengthens its part.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. A full server accepts GETEX, and all writes that follow.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = string.format('%.0f', now)
local owner, phase = ARGV[1] .. ':', 'shared:' .. ARGV[4] .. ':1'
local lease = redis.call('GETEX', KEYS[1])
if not lease then
  return '0 ' .. stamp
elseif string.sub(lease, 1, #owner) == owner then
  redis.call('ZCARD', KEYS[4])
  local ms = string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0') -- this downgrade confirms a lease that came by hand-off
  redis.call('DEL', KEYS[4])
  lease = phase .. (string.match(lease, '^[^:]*:%d+:%d+(:.*)$') or '')
  redis.call('SET', KEYS[1], lease, 'PX', ms)
  enter(now, ARGV[3], ms)
  admit(now, stamp, lease, nil)
elseif string.sub(lease .. ':', 1, #phase + 1) == phase .. ':' and
  tonumber(redis.call('ZSCORE', KEYS[4], ARGV[3]) or '0') > now / 1000 then
  enter(now, ARGV[3], ARGV[2])
else
  return '0 ' .. stamp
end
return '1 ' .. stamp .. ' ' .. redis.call('EXISTS', KEYS[2])
