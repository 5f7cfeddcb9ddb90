-- look.lua: read a node's identity, clock, marker and waits.
--
-- KEYS: marker N of the node · begun B
-- ARGV: none
-- returns: server-µs identity evicts N, and for each wait that has begun: name server-µs; all in
--          one string, separated by spaces. identity is "-" when the server does not give it. N is
--          "-" when it does not exist. evicts is "1" when the server may evict keys, otherwise "0".
-- idempotent: it writes nothing.
--
-- The identity of the server's data is its replication ID. The ID changes when a server starts and
-- when a replica is promoted.
local clock = redis.call('TIME')
local memory = redis.call('INFO', 'memory')
local limit, policy = string.match(memory, 'maxmemory:(%d+)'), string.match(memory, 'maxmemory_policy:([%w-]+)')
local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or '-'
local evicts = (limit or '0') ~= '0' and policy ~= 'noeviction' and '1' or '0'
return clock[1] .. string.sub('00000' .. clock[2], -6) .. ' ' .. id .. ' ' .. evicts .. ' ' ..
  (redis.call('GET', KEYS[1]) or '-') .. ' ' .. table.concat(redis.call('HGETALL', KEYS[2]), ' ')
