-- mark.lua: change a node's marker if it is still the given one, and record that a wait has begun.
--
-- KEYS: marker N of the node · begun B
-- ARGV: identity of the server that the client has seen · text of N that the client has read, ""
--       when there was none · text that N gets, "" to leave it · a wait that has begun, by its
--       name, "" for none
-- returns: "1", or "0" when N or the identity is another one
-- idempotent: a second execution finds the new text, and keeps the begin that it finds in B.
-- first write: SET of N, HSET of B, which a full server refuses, and then nothing has happened.
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
    redis.call('DEL', KEYS[2]) -- nobody reads waits that are over; a wait under way begins anew
  end
  redis.call('HSET', KEYS[2], ARGV[4], clock[1] .. string.sub('00000' .. clock[2], -6))
end
return '1'
