-- forget.lua: remove a record in progress.
--
-- KEYS: record
-- ARGV: fence, 20 digits
-- returns: how many records were removed, 0 or 1
-- idempotent: a second execution finds nothing, or the record of a later run.
-- first write: DEL, which a full server accepts.

local was = redis.call('HMGET', KEYS[1], 'fence', 'open')
if was[1] == ARGV[1] and was[2] then
  return redis.call('DEL', KEYS[1])
end
return 0
