-- quorum_rw_confirm.lua: raise a vote to the fence that a quorum agreed on; of a reader's, the whole phase, never down.
--
-- KEYS: lease L · fence counter C · readers R
-- ARGV: token · the fence that this node has granted it · the fence of the quorum · the last of its block · the token's entry
--       in R, for a reader, "" for a writer
-- returns: "1", or "0" when the vote is not that token's any more, or was granted to it anew
-- idempotent: a second execution finds the counter at least as large, and the fence in L.
-- first write: GETEX, which changes nothing and which memory cannot refuse; a replica answers READONLY.
local lease = redis.call('GETEX', KEYS[1])
local token, fence, granted, metadata = string.match(lease or '', '^([^:]*):(%d+):%d+:(%d+):(.*)$')
local reader = ARGV[5] ~= ''
if granted ~= ARGV[2] or token ~= (reader and 'shared' or ARGV[1]) or
  tonumber(ARGV[3]) < tonumber(reader and granted or fence) then
  return '0'
end
if reader then
  local clock = redis.call('TIME')
  if tonumber(redis.call('ZSCORE', KEYS[3], ARGV[5]) or '0') <= clock[1] * 1000 + clock[2] / 1000 then
    return '0'
  end
end
if (tonumber(redis.call('GET', KEYS[2]) or '0') or 0) < tonumber(ARGV[4]) then
  redis.call('SET', KEYS[2], ARGV[4])
end
if not reader and fence ~= ARGV[3] or reader and tonumber(fence) < tonumber(ARGV[3]) then
  redis.call('SET', KEYS[1], token .. ':' .. ARGV[3] .. ':' .. string.format('%.0f', ARGV[4] - ARGV[3] + 1) .. ':' .. granted .. ':' .. metadata, 'KEEPTTL')
end
return '1'
