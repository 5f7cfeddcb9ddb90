-- confirm.lua: raise a vote to the fence, and the block, that a quorum agreed on. For readers,
-- raise the fence of the whole phase. The fence is never lowered.
--
-- KEYS: lease L · fence counter C · readers R · marker N of the node
-- ARGV: text of N that the client has read · token · the fence that this node has granted the token
--       · the fence of the quorum · the last fence of the quorum's block · the token's entry in R,
--       for a reader, "" for a writer
-- returns: "1"; "0" when the token's vote is gone or was granted anew, or when N has changed
-- idempotent: a second execution finds that the counter is large enough and that L has the fence,
--   so it writes nothing.
-- first write: GETEX, which changes nothing. A full server accepts it, and a replica answers
--   READONLY.
--
-- L must still have the value that was granted. This value proves that L has belonged to the token
-- since the grant. If the lease ran out and a late repetition of the acquire got a new one, the new
-- lease must not get the old fence.
local lease = redis.call('GETEX', KEYS[1])
local token, fence, granted, metadata = string.match(lease or '', '^([^:]*):(%d+):%d+:(%d+):(.*)$')
local reader = ARGV[6] ~= ''
if granted ~= ARGV[3] or token ~= (reader and 'shared' or ARGV[2]) or
  tonumber(ARGV[4]) < tonumber(reader and granted or fence) or redis.call('GET', KEYS[4]) ~= ARGV[1] or
  not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(ARGV[1], 1, 40), 1, true) then
  return '0'
end
if reader then
  local clock = redis.call('TIME')
  if tonumber(redis.call('ZSCORE', KEYS[3], ARGV[6]) or '0') <= clock[1] * 1000 + clock[2] / 1000 then
    return '0'
  end
end
if (tonumber(redis.call('GET', KEYS[2]) or '0') or 0) < tonumber(ARGV[5]) then
  redis.call('SET', KEYS[2], ARGV[5])
end
if not reader and fence ~= ARGV[4] or reader and tonumber(fence) < tonumber(ARGV[4]) then
  local block = string.format('%.0f', ARGV[5] - ARGV[4] + 1)
  redis.call('SET', KEYS[1], token .. ':' .. ARGV[4] .. ':' .. block .. ':' .. granted .. ':' .. metadata, 'KEEPTTL')
end
return '1'
