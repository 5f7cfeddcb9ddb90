-- renew.lua: lengthen each vote that still belongs to its owner.
--
-- KEYS: for each lease: lease L; then marker N of the node
-- ARGV: for each lease: token · how long the node keeps the lease, in ms; then settings of the
--       quorum
-- returns: server-µs, the identity of the server and, after a space, for each lease in order: "1"
--          when the owner has the lease, "0" when it does not; as one string. When the node does
--          not vote: server-µs and "-"
-- idempotent: each execution sets expiries to at least the given time from now. It never shortens
--   an expiry, and never creates a key.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. A key whose data is no string gets no GETEX, because the error of GETEX
--   would end the renewals of all leases.
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local marker = redis.call('GET', KEYS[#KEYS])
if not votes(marker, ARGV[#ARGV], stamp) then
  return stamp .. ' -'
end
local answer = {}
for i = 1, #KEYS - 1 do
  local owner, ttl = ARGV[2 * i - 1] .. ':', tonumber(ARGV[2 * i])
  local kind = redis.call('TYPE', KEYS[i])['ok']
  local lease = (kind == 'string' or kind == 'none') and redis.call('GETEX', KEYS[i]) or ''
  answer[i] = '0'
  if string.sub(lease, 1, #owner) == owner then
    redis.call('PEXPIRE', KEYS[i], math.max(redis.call('PTTL', KEYS[i]), ttl))
    answer[i] = '1'
  end
end
return stamp .. ' ' .. string.sub(marker, 1, 40) .. ' ' .. table.concat(answer)
