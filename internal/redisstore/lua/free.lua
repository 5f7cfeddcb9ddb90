-- free.lua: release a lease, and change nothing else. The script is for a slot that moves.
--
-- KEYS: lease L
-- ARGV: token
-- returns: "1", or "0" when the token does not hold L
-- idempotent: a second execution finds L without the token and does nothing.
-- first write: GETEX, which changes nothing. A full server accepts it, and the DEL after it.
local owner = ARGV[1] .. ':'
if string.sub(redis.call('GETEX', KEYS[1]) or '', 1, #owner) ~= owner then
  return '0'
end
redis.call('DEL', KEYS[1])
return '1'
