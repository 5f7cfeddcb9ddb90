-- begin.lua: write the record of a request whose work begins now.
--
-- KEYS: record
-- ARGV: fence, 20 digits · fingerprint · lifetime in ms
-- returns: began (1 or 0) · and the fields of the earlier record: fence · fingerprint · open mark ·
--          response; a missing field is nil
-- idempotent: a second execution finds its own fence and writes the same values again. After a
--   save, a second execution changes nothing.
-- first write: HSET. When a full server refuses it, nothing has happened.

local was = redis.call('HMGET', KEYS[1], 'fence', 'fingerprint', 'open', 'response')
if was[1] and (not was[3] or was[2] ~= ARGV[2] or was[1] > ARGV[1]) then
  return {0, was[1], was[2], was[3], was[4]}
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'fingerprint', ARGV[2], 'open', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, was[1], was[2], was[3], was[4]}
