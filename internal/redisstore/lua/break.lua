-- break.lua: revoke the lease of a holder, of all readers of a phase, or one permit. Leave a note
-- for them, and hand the key or the free units to the next waiters.
--
-- KEYS: lease L · queue Q · fence counter C · readers R, or permits P · [for a permit: uses U ·
--   tombstone X of the holder's token, or of the phase; X is always the last key]
-- ARGV: token:fence: of the permit, of the holder, or of the phase; unless a permit is revoked, L
--   begins with this text · what X contains: "revoked:" and the reason · for how long to keep X, in
--   ms, 0: no note
-- returns: "1", or "0" when the permit, the holder or the phase does not hold the key any more
-- idempotent: a second execution finds no such permit, holder or phase, and does nothing.
-- first write: GETEX, which changes nothing. A full server accepts it, and the DEL or ZREM after
--   it.
local lease, waiting = redis.call('GETEX', KEYS[1]), redis.call('ZCARD', KEYS[2]) > 0
local permit = KEYS[6] and string.match(ARGV[1], '^[^:]*')
if not permit and (not lease or string.sub(lease .. ':', 1, #ARGV[1]) ~= ARGV[1]) then
  return '0'
end
-- If a key has data of another type, the script must fail before it changes anything.
redis.call('GET', KEYS[#KEYS])
local counter, phase = redis.call('GET', KEYS[3]), lease and string.sub(lease, 1, 7) == 'shared:'
redis.call('ZCARD', KEYS[4])
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local now = tonumber(stamp)

if permit then
  look(now, stamp, counter, lease)
  local use = all.held > 0 and redis.call('HGET', KEYS[5], permit)
  if not use or permit .. ':' .. string.match(use, '^%d+') .. ':' ~= ARGV[1] then
    return '0'
  end
  leave(permit)
else
  redis.call('DEL', KEYS[1], KEYS[4])
end
if tonumber(ARGV[3]) > 0 then
  redis.call('SET', KEYS[#KEYS], ARGV[2], 'PX', ARGV[3])
end
if not permit and waiting then
  -- The revoked lease may have come by hand-off and be unconfirmed. The holder's entry must leave Q
  -- before serve runs, because serve counts each hand-off that it finds in Q as lapsed.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0')
  serve(now, stamp, counter, nil, not phase and 'readers' or nil)
elseif permit then
  if not all.alone then
    reap()
    supply(nil)
  end
  settle()
end
return '1'
