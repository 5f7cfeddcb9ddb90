-- mark.lua: change a node's marker if the server and the marker are still what the client has seen.
--
-- KEYS: marker N of the node
-- ARGV: identity of the server that the client has seen · text of N that the client has seen, ""
--       when there was none · new text of N
-- returns: "1", or "0" when N or the identity differs from its argument
-- idempotent: a second execution finds the new text, and answers "1" again.
-- first write: SET of N. When a full server refuses the write, nothing has happened.
local text = redis.call('GET', KEYS[1]) or ''
if text ~= ARGV[2] and text ~= ARGV[3] or string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then
  return '0'
end
redis.call('SET', KEYS[1], ARGV[3])
return '1'
