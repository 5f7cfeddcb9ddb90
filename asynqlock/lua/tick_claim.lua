-- tick_claim.lua: claim the next slot of a schedule's entry, or record that the slot was enqueued.
-- KEYS: the hash of the schedule. For each entry it has the last slot, in Unix seconds, with "?"
--   after it while the slot is claimed and perhaps not enqueued
-- ARGV: entry · the required value, "" for none · its new value · time to live of the hash, ms
-- returns: 1, or 0 when the value is not the required one
-- first write: HSET. When a full server refuses it, nothing has happened.
-- idempotent: a second execution finds the new value.
local value = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if value ~= ARGV[2] then
  return value == ARGV[3] and 1 or 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
