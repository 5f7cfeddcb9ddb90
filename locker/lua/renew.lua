-- renew.lua: make leases that are still their owners' last longer.
--
-- KEYS: leases L1 … Ln
-- ARGV: for each lease: token · ttl in ms · the longest ttl ever sent for the token, in ms
-- returns: {server µs, 1 or 0 for each lease in order}: 1 it is the owner's, 0 it is not
-- idempotent: it sets expiries to at least ttl from now. It never shortens one (a late renewal must not undo an
--   extension), except one that is longer than any that was asked for: then the server's clock stepped back. It never
--   creates a key.
-- first write: GETEX, which changes nothing, but makes a replica answer READONLY instead of a false 0.
local clock = redis.call('TIME')
local answer = {clock[1] * 1000000 + clock[2]}
for i = 1, #KEYS do
  local owner = ARGV[3 * i - 2] .. ':'
  local lease = redis.call('GETEX', KEYS[i])
  if lease and string.sub(lease, 1, #owner) == owner then
    local left = redis.call('PTTL', KEYS[i])
    local ttl, longest = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
    if left < ttl then
      redis.call('PEXPIRE', KEYS[i], ttl)
    elseif left > longest then
      redis.call('PEXPIRE', KEYS[i], longest)
    end
    answer[i + 1] = 1
  else
    answer[i + 1] = 0
  end
end
return answer
