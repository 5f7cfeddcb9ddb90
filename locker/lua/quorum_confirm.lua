-- quorum_confirm.lua: raise a vote to the fence, and the block, that a quorum agreed on.
--
-- KEYS: lease L · fence counter C
-- ARGV: token · the fence that this node has granted it · the fence of the quorum · the last of its block
-- returns: "1", or "0" when L is not that token's any more, or was granted to it anew
-- idempotent: a second execution finds the counter at least as large, and the fence in L.
-- first write: GETEX, which changes nothing and which memory cannot refuse; a replica answers READONLY.
--
-- That L still holds the value that was granted shows that it has been the token's all the time since: a lease that ran out
-- and was taken again by a late repetition must not carry an old fence into a new time.
local lease = redis.call('GETEX', KEYS[1])
local token, fence, granted, metadata = string.match(lease or '', '^([^:]*):(%d+):%d+:(%d+):(.*)$')
if token ~= ARGV[1] or granted ~= ARGV[2] or tonumber(ARGV[3]) < tonumber(fence) then
  return '0'
end
if (tonumber(redis.call('GET', KEYS[2]) or '0') or 0) < tonumber(ARGV[4]) then
  redis.call('SET', KEYS[2], ARGV[4])
end
if fence ~= ARGV[3] then
  redis.call('SET', KEYS[1], token .. ':' .. ARGV[3] .. ':' .. string.format('%.0f', ARGV[4] - ARGV[3] + 1) .. ':' .. granted .. ':' .. metadata, 'KEEPTTL')
end
return '1'
