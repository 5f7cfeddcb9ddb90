-- vote.lua: give the node's vote for a lease to a token; otherwise return the holder, or why the
--   node does not vote. A node that may have forgotten leases begins its wait here.
--
-- KEYS: lease L · fence counter C · tombstone X of the token · marker N of the node · [done mark D,
--       left out when it does not count]
-- ARGV: settings of the quorum: nodes/ttl · text of L if the node takes the proposal · how long the
--       node keeps the lease, in ms · fence that the client proposes · last fence of the block ·
--       earliest time of the node's clock at which the node takes the proposal, in µs · latest such
--       time · [how long a node waits that may have forgotten leases, in µs; "0" if the client does
--       not know the time well enough to let a wait begin; left out for a node that voted lately]
-- returns: a state, server-µs, the identity of the server ("-" if it has none), and for the state
--          "1" nothing: the token has the vote as proposed · "granted" PTTL L · "busy" PTTL L ·
--          "undone" nothing · "revoked" reason · "done" nothing · "waits" µs until the node votes ·
--          "forgot" nothing: no wait has begun · "stepped" nothing: the same, because the clock was
--          wrong · "other" the settings in N · "evicts" nothing; as one string
-- idempotent: a second execution that finds the token in L answers with the same L, and at most
--   lengthens it. After an undo it finds X. A wait that has begun goes on.
-- first write: SET of C for a free L, or SET of N. When a full server refuses this write, nothing
--   has happened. In other cases, it is GETEX or PEXPIRE, which a full server accepts and a replica
--   refuses.
--
-- L is token:fence:block:minted:metadata.

-- One MGET replaces four GETs. It reads data of another type as missing.
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
local lease, counter, tombstone, marker = found[1], found[2], found[3], found[4]
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6) -- in µs; joined as text, because formatting a number takes as long as a command
local known = votes(marker, ARGV[1], stamp)
local near = #stamp == #ARGV[6] and #stamp == #ARGV[7] and stamp >= ARGV[6] and stamp <= ARGV[7]

if not known or ARGV[8] then
  local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or '-'
  local at = ' ' .. stamp .. ' ' .. id
  local memory = redis.call('INFO', 'memory')
  if (string.match(memory, 'maxmemory:(%d+)') or '0') ~= '0' and string.match(memory, 'maxmemory_policy:([%w-]+)') ~= 'noeviction' then
    return 'evicts' .. at
  end
  if not known then
    local of, since, settings = string.match(marker or '', '^(%x+)/(%d+)/(%d+/%d+)$')
    if settings and settings ~= ARGV[1] then
      return 'other' .. at .. ' ' .. settings
    elseif of == id and since ~= '9999999999999999' then
      return 'waits' .. at .. ' ' .. string.format('%.0f', since - stamp)
    elseif near and ARGV[8] and ARGV[8] ~= '0' and #id == 40 then
      redis.call('SET', KEYS[4], id .. string.format('/%.0f/', stamp + ARGV[8]) .. ARGV[1])
      return 'waits' .. at .. ' ' .. ARGV[8]
    end
    return (of == id and 'stepped' or 'forgot') .. at
  end
end
local at = ' ' .. stamp .. ' ' .. string.sub(marker, 1, 40)

-- The node takes a proposal that is larger than every earlier fence and close to the node's time.
-- Usually the other nodes take the same proposal, so all votes have one fence. If the counter
-- exists, a proposal with another number of digits is not taken, for example from a client whose
-- clock is years behind.
local taken = near and (not counter or #counter == #ARGV[4] and counter < ARGV[4])
if taken and not lease and not tombstone and not KEYS[5] then
  redis.call('SET', KEYS[2], ARGV[5], 'GET') -- the option GET raises an error for data that is no counter; MGET raises none
  if not redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3], 'NX') then
    redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
  end
  return '1' .. at
end

if tombstone then
  if string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked' .. at .. ' ' .. string.sub(tombstone, 9)
  end
  return 'undone' .. at
end
if KEYS[5] and redis.call('GET', KEYS[5]) then
  return 'done' .. at
end

local owner = string.match(ARGV[2], '^([^:]*:)')
if lease then
  -- GETEX changes nothing, but a lagging replica refuses it with READONLY, and so never answers a
  -- false "busy".
  redis.call('GETEX', KEYS[1])
  local ours = string.sub(lease, 1, #owner) == owner
  if ours and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  return (ours and 'granted' or 'busy') .. at .. ' ' .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
end

-- A client whose clock is ahead moves the counter ahead by no more than the skew. A client whose
-- clock is behind gets a fence from the server's clock.
local fence, ends = ARGV[4], ARGV[5]
local block, metadata = string.match(ARGV[2], '^[^:]*:%d+:(%d+):%d+:(.*)$')
if not taken then
  local now, skew, last = tonumber(stamp), ARGV[7] - ARGV[4], counter and tonumber(counter) or 0
  if last >= 9007199254740991 then -- from 2^53 on Lua's numbers are not exact
    return redis.error_reply('ERR latchkit: the fence counter of this key is at 2^53 or above, so fences would repeat; set the counter to a lower number that is above all fences in use')
  end
  local hint = math.min(tonumber(ARGV[4]), now + skew)
  local first, n = math.max(last + 1, hint), tonumber(block)
  if now > hint + skew then
    first = math.max(first, now)
  end
  if first + n - 1 > now + 100000 then
    n = 1
  end
  fence, block, ends = string.format('%.0f', first), string.format('%.0f', n), string.format('%.0f', first + n - 1)
end
lease = owner .. fence .. ':' .. block .. ':' .. fence .. ':' .. metadata
redis.call('SET', KEYS[2], ends, 'GET') -- the option GET raises an error for data that is no counter
if not redis.call('SET', KEYS[1], lease, 'PX', ARGV[3], 'NX') then
  redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
end
return 'granted' .. at .. ' ' .. ARGV[3] .. ' ' .. lease
