-- leave.lua: end a join. The lease that was joined does not change.
--
-- KEYS: lease L · joins J
-- ARGV: token of the join
-- returns: "released" server-µs · "not-ours" server-µs when the lease that was joined is over, or
--   was never joined; as one string
-- idempotent: a second execution finds nothing to remove and answers "not-ours". The Engine knows
--   that there may have been a first execution.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false "not ours".
local clock = redis.call('TIME')
local at = string.format(' %.0f ', clock[1] * 1000000 + clock[2])
local lease = redis.call('GETEX', KEYS[1])
local name = 's:' .. ARGV[1]
local of = string.match(redis.call('HGET', KEYS[2], name) or '', '^(%d+) ')
redis.call('HDEL', KEYS[2], name)
local _, hold = string.match(lease or '', '^([A-Z2-7]+):(%d+):')
if not of or of ~= hold then
  return 'not-ours' .. at
end
return 'released' .. at
