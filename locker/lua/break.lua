-- break.lua: throw a holder out, and leave it a note.
--
-- KEYS: lease L · tombstone X of the holder's token
-- ARGV: the holder's token · what X says: "revoked:" and the reason · keep X this long, in ms, 0: no note
-- returns: 1, or 0 when L is not that token's any more
-- idempotent: a second execution finds L without the token and does nothing.
-- first write: GETEX, which changes nothing and which memory cannot refuse; then DEL.
local owner = ARGV[1] .. ':'
local lease = redis.call('GETEX', KEYS[1])
if not lease or string.sub(lease, 1, #owner) ~= owner then
  return 0
end
redis.call('DEL', KEYS[1])
if tonumber(ARGV[3]) > 0 then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
end
return 1
