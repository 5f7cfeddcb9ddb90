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
  local first = string.find(marker or '', ':', 2, true) -- plain, twice: a pattern costs as much as a command
  if not first or
    not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(marker, 1, first - 1), 1, true) then
    return false
  end
  local second = string.find(marker, ':', first + 1, true)
  return not second or string.sub(marker, second + 1) == evictions()
end
