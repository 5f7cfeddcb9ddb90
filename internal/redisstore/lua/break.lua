-- break.lua: revoke a holder's lease, leave a note for the holder, and hand the key to the next
-- waiter.
--
-- KEYS: lease L · queue Q · fence counter C · tombstone X of the holder's token
-- ARGV: the beginning of L, with the holder's token and fence · what X contains: "revoked:" and the
--   reason · for how long to keep X, in ms, 0: no note
-- returns: "1", or "0" when that holder does not hold L any more
-- idempotent: a second execution finds L without the holder and does nothing.
-- first write: GETEX, which changes nothing. A full server accepts it, and the DEL after it.
local lease = redis.call('GETEX', KEYS[1])
if not lease or string.sub(lease .. ':', 1, #ARGV[1]) ~= ARGV[1] then
  return '0'
end
-- If a key has data of another type, the script must fail before it changes anything.
local first = redis.call('ZRANGE', KEYS[2], '0', '0')
local counter = redis.call('GET', KEYS[3])
redis.call('GET', KEYS[4])

redis.call('DEL', KEYS[1])
if tonumber(ARGV[3]) > 0 then
  redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[3])
end
if first[1] then
  local clock = redis.call('TIME')
  -- The revoked lease may have come by hand-off and be unconfirmed. The holder's entry must leave Q
  -- before hand runs, because hand counts each hand-off that it finds in Q as lapsed.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0')
  local now = clock[1] * 1000000 + clock[2]
  hand(now, string.format('%.0f', now), counter, nil)
end
return '1'
