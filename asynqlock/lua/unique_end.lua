-- unique_end.lua: end the uniqueness lock that a clone holds.
-- KEYS: the uniqueness lock
-- ARGV: ID of the clone
-- returns: 1, or 0 when the clone does not hold the lock
-- first write: DEL, which a full server does not refuse.
-- idempotent: a second execution finds no lock, or the lock of another task.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
