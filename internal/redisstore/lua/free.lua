-- free.lua: release a lease, or keep it without an owner, and change nothing else. The script is
-- for a slot that moves.
--
-- KEYS: lease L
-- ARGV: token · for how long to keep L, in ms, 0: release it
-- returns: "1", or "0" when the token does not hold L
-- idempotent: a second execution finds L without the token and does nothing.
-- first write: GETEX, which changes nothing. A full server accepts it, and the DEL or PEXPIRE
--   after it.
local owner = ARGV[1] .. ':'
local lease = redis.call('GETEX', KEYS[1])
if not lease or string.sub(lease, 1, #owner) ~= owner then
  return '0'
end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', ARGV[2])
end
return '1'
