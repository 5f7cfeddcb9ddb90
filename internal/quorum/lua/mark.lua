-- mark.lua: change a node's marker if it still has the text that the client has read, and record
--   that a wait has begun.
--
-- KEYS: marker N of the node · begun B
-- ARGV: identity that the server had when the client read N · text of N that the client has read,
--       "" when there was none · new text of N, "" to leave it · name of a wait that has begun, ""
--       for none
-- returns: "1", or "0" when N or the identity differs from its argument
-- idempotent: a second execution finds the new text and returns "0". If there is no new text, it
--   keeps the begin time that is in B.
-- first write: SET of N or HSET of B. When a full server refuses the write, nothing has happened.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] or
  (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then
  return '0'
end
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[1], ARGV[3])
end
if ARGV[4] ~= '' and not redis.call('HGET', KEYS[2], ARGV[4]) then
  local clock = redis.call('TIME')
  if redis.call('HLEN', KEYS[2]) > 62 then
    redis.call('DEL', KEYS[2]) -- waits that have ended are of no use; a wait that has not ended begins again
  end
  redis.call('HSET', KEYS[2], ARGV[4], clock[1] .. string.sub('00000' .. clock[2], -6))
end
return '1'
