-- confirm.lua: raise a vote to the fence, and the block, that a quorum agreed on. Never lower it.
--
-- KEYS: lease L · fence counter C · marker N of the node
-- ARGV: settings of the quorum · token · the fence that this node has granted the token · the fence
--       of the quorum · the last fence of the quorum's block
-- returns: "1"; "0" when the token's vote is gone or was granted anew, or when the node does not
--          vote
-- idempotent: a second execution finds that the counter is large enough and that L has the fence,
--   so it writes nothing.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY.
--
-- L must still have the value that was granted. This value proves that L has belonged to the token
-- since the grant. If the lease ran out and a late repetition of the acquire got a new one, the new
-- lease must not get the old fence.
local lease = redis.call('GETEX', KEYS[1])
local clock = redis.call('TIME')
local token, fence, granted, metadata = string.match(lease or '', '^([^:]*):(%d+):%d+:(%d+):(.*)$')
if granted ~= ARGV[3] or token ~= ARGV[2] or tonumber(ARGV[4]) < tonumber(fence) or
  not votes(redis.call('GET', KEYS[3]), ARGV[1], clock[1] .. string.sub('00000' .. clock[2], -6)) then
  return '0'
end
if (tonumber(redis.call('GET', KEYS[2]) or '0') or 0) < tonumber(ARGV[5]) then
  redis.call('SET', KEYS[2], ARGV[5])
end
if fence ~= ARGV[4] then
  local block = string.format('%.0f', ARGV[5] - ARGV[4] + 1)
  redis.call('SET', KEYS[1], token .. ':' .. ARGV[4] .. ':' .. block .. ':' .. granted .. ':' .. metadata, 'KEEPTTL')
end
return '1'
