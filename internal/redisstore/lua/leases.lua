-- leases.lua: find out which keys are leases.
--
-- KEYS: leases L1 … Ln
-- ARGV: none
-- returns: for each key in order "1" when its value has the form of a lease, otherwise "0"; as one
--   string
-- idempotent: it writes nothing.
local answer = {}
for i = 1, #KEYS do
  -- The key of another program may have a large value, so only its beginning is read.
  local token = redis.call('TYPE', KEYS[i])['ok'] == 'string' and
    string.match(redis.call('GETRANGE', KEYS[i], '0', '63'), '^(%w+):%d+') or ''
  answer[i] = (#token == 26 or token == 'shared' or token == 'kept' or token == 'permits') and '1' or '0'
end
return table.concat(answer)
