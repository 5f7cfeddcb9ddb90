-- rw_break.lua: revoke the lease of a holder, or of all readers of a phase, leave a note for them,
-- and hand the key to the next waiter.
--
-- KEYS: lease L · queue Q · fence counter C · readers R · tombstone X of the holder's token, or of
--   the phase
-- ARGV: the beginning of L, with token and fence of the holder or of the phase · what X contains:
--   "revoked:" and the reason · for how long to keep X, in ms, 0: no note
-- returns: "1", or "0" when the holder or the readers do not hold L any more
-- idempotent: a second execution finds another L, or no L, and does nothing.
-- first write: GETEX, which changes nothing. A full server accepts it, and the DEL after it.
local lease = redis.call('GETEX', KEYS[1])
if not lease or string.sub(lease .. ':', 1, #ARGV[1]) ~= ARGV[1] then
  return '0'
end
-- If a key has data of another type, the script must fail before it changes anything.
local first = redis.call('ZRANGE', KEYS[2], '0', '0')
local counter = redis.call('GET', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('GET', KEYS[5])

redis.call('DEL', KEYS[1], KEYS[4])
if tonumber(ARGV[3]) > 0 then
  redis.call('SET', KEYS[5], ARGV[2], 'PX', ARGV[3])
end
if first[1] then
  local clock = redis.call('TIME')
  -- The revoked lease may have come by hand-off and be unconfirmed. The holder's entry must leave Q
  -- before serve runs, because serve counts each hand-off that it finds in Q as lapsed.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0')
  local now = clock[1] * 1000000 + clock[2]
  serve(now, string.format('%.0f', now), counter, nil, string.sub(lease, 1, 7) ~= 'shared:' and 'readers' or nil)
end
return '1'
