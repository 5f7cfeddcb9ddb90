-- quorum_member.lua: does this server remember all that it has granted?
--
-- fragment: evictions() · member(marker)
-- KEYS: none
-- returns: evictions: how many keys it has evicted, in digits · member: whether the marker is this server's
-- idempotent: it writes nothing.
--
-- The marker is identity:longest[:evictions]. The identity of the server's data is its replication ID: it changes when a server
-- starts and when a replica is promoted. A server that may evict has its count of evictions in the marker as well.
local function evictions()
  return string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') or ''
end

local function member(marker)
  local id, evicted = string.match(marker or '', '^(%x+):%d+:?(%d*)$')
  return id and string.find(redis.call('INFO', 'replication'), 'master_replid:' .. id, 1, true) and
    (evicted == '' or evicted == evictions())
end
