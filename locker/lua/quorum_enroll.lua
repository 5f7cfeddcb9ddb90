-- quorum_enroll.lua: find out whether a node remembers all that it has granted, and make it a member again when whatever it
-- may have forgotten is over.
--
-- KEYS: marker N of the node · quarantine K
-- ARGV: the longest TTL of the caller, in ms · how long it makes a node wait after a loss, in ms · "" to ask; "new" declares
--       that the node holds no leases; otherwise the quarantine that the caller has waited for · how long that was, in ms
-- returns: "member" identity longest, the longest TTL in use in ms · "quarantine" identity name ms, where ms is how long it lasts, on the caller's own clock · "old"
--          identity when a node that is declared new has a marker of other data · "unknown" when the server does not tell who
--          it is; words with a space between, as one string
-- idempotent: a second execution finds the marker, or the quarantine.
-- first write: SET of N or K, which a full server refuses, and then nothing has happened: the node does not vote.
local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
if not id then
  return 'unknown'
end
local marker = redis.call('GET', KEYS[1])
local longest = tonumber(string.match(marker or '', '^%x+:(%d+)') or '0')
local entered = id .. ':' .. string.format('%.0f', math.max(longest, tonumber(ARGV[1])))
local admitted = 'member ' .. id .. ' ' .. string.match(entered, '%d+$')
local memory = redis.call('INFO', 'memory')
if string.match(memory, 'maxmemory:(%d+)') ~= '0' and string.match(memory, 'maxmemory_policy:([%w-]+)') ~= 'noeviction' then
  entered = entered .. ':' .. evictions() -- what evicts keys forgets leases without a restart
end
if member(marker) then
  if marker ~= entered then
    redis.call('SET', KEYS[1], entered) -- somebody uses longer leases, or the server may evict now
  end
  return admitted
end
if ARGV[3] == 'new' then
  if marker then
    return 'old ' .. id
  end
  redis.call('SET', KEYS[1], entered)
  redis.call('DEL', KEYS[2])
  return admitted
end

-- K says which quarantine this is and how long it must last. It does not end it: only the clock of a client that has seen all
-- of it does, because this server's clock may be set. A loss in between, or a member in between, makes it another one.
local waits = tonumber(ARGV[2]) + math.max(longest - tonumber(ARGV[1]), 0) * 1.01
local whose, name, wait = string.match(redis.call('GET', KEYS[2]) or '', '^(%x+):(%d+):(%d+)$')
if whose == id then
  waits = math.max(waits, tonumber(wait))
  if ARGV[3] == name and waits <= tonumber(ARGV[4]) then
    redis.call('SET', KEYS[1], entered)
    redis.call('DEL', KEYS[2])
    return admitted
  end
else
  local clock = redis.call('TIME')
  name = string.format('%.0f', clock[1] * 1000000 + clock[2])
end
local text = string.format('%.0f', math.ceil(waits))
redis.call('SET', KEYS[2], id .. ':' .. name .. ':' .. text, 'PX', string.format('%.0f', 2 * math.ceil(waits)))
return 'quarantine ' .. id .. ' ' .. name .. ' ' .. text
