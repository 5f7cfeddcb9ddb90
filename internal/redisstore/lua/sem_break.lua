-- sem_break.lua: revoke one permit, leave a note for its holder, and grant the free units to the
-- waiters.
--
-- KEYS: lease L · queue Q · fence counter C · permits P · uses U · tombstone X of the holder's
--   token
-- ARGV: the holder's token · its fence · what X contains: "revoked:" and the reason · for how long
--   to keep X, in ms, 0: no note
-- returns: "1", or "0" when that holder has no permit with that fence any more
-- idempotent: a second execution finds no such permit and does nothing.
-- first write: GETEX, which changes nothing. A full server accepts it, and the ZREM after it.

-- fragments

local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local lease = redis.call('GETEX', KEYS[1])
look(tonumber(stamp), stamp, redis.call('GET', KEYS[3]), lease)
local use = all.held > 0 and redis.call('HGET', KEYS[5], ARGV[1])
if not use or string.match(use, '^(%d+)|') ~= ARGV[2] then
  return '0'
end
-- If a key has data of another type, the script must fail before it changes anything.
redis.call('GET', KEYS[6])
local waiting = redis.call('ZCARD', KEYS[2]) > 0

leave(ARGV[1])
if tonumber(ARGV[4]) > 0 then
  redis.call('SET', KEYS[6], ARGV[3], 'PX', ARGV[4])
end
if not all.alone then
  reap()
  if waiting then
    serve(nil)
  end
end
settle()
return '1'
