-- look.lua: read a node's identity, clock, policy and marker.
--
-- KEYS: marker N of the node
-- ARGV: none
-- returns: server-µs identity evicts N, in one string. identity is "-" when the server has none.
--          evicts is "1" when the server may evict keys, otherwise "0". N may be missing.
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local memory = redis.call('INFO', 'memory')
local limit, policy = string.match(memory, 'maxmemory:(%d+)'), string.match(memory, 'maxmemory_policy:([%w-]+)')
local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or '-'
local evicts = (limit or '0') ~= '0' and policy ~= 'noeviction' and '1' or '0'
return clock[1] .. string.sub('00000' .. clock[2], -6) .. ' ' .. id .. ' ' .. evicts .. ' ' .. (redis.call('GET', KEYS[1]) or '')
