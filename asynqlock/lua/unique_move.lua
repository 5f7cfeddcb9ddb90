-- unique_move.lua: hand the uniqueness lock of asynq.Unique from a task to its clone, for the rest
-- of the lock's time.
-- KEYS: the uniqueness lock
-- ARGV: ID of the task · ID of the clone
-- returns: 1, or 0 when the task does not hold the lock
-- first write: SET. When a full server refuses it, nothing has happened.
-- idempotent: a second execution finds that the clone has the lock.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
