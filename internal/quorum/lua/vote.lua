-- vote.lua: give the node's vote for a lease to a token; otherwise return the holder and queue.
--
-- KEYS: lease L · queue Q · wake mark W · fence counter C · tombstone X of the token · marker N of
--       the node · done mark D
-- ARGV: text of N that the client has read · text of L if the node takes the proposal · how long
--       the node keeps the lease, in ms · fence that the client proposes · last fence of the block
--       · earliest time of the node's clock at which the node takes the proposal, in µs · latest
--       time at which the node takes it, in µs · ["1" when the done mark counts, else "0"; left
--       out, with all arguments after it, for a token that does not queue and for which no done
--       mark counts] · inbox where the caller waits, "" when it does not wait · ticket
-- returns: "1" server-µs when a token that sends only the first arguments gets the vote as
--          proposed · "changed" server-µs when N is not the text that the client has read, or was
--          written for another server · "granted" server-µs PTTL L · "busy" server-µs PTTL place
--          listeners holder, where listeners is "-" for a caller that does not wait, and holder is
--          L, or token:0:0 of the token for which the vote is kept · "undone" server-µs ·
--          "revoked" server-µs reason · "done" server-µs; as one string
-- idempotent: a second execution that finds the token in L answers with the same L, and at most
--   lengthens it. If it finds the token in Q, the token keeps its ticket. A second execution after
--   an undo finds X.
-- first write: SET of C for a free L. When a full server refuses this write, nothing has happened.
--   In other cases, it is GETEX or PEXPIRE, which a full server accepts and a replica refuses.
--
-- L is token:fence:block:minted:metadata.

-- One MGET replaces five GETs. It reads data of another type as missing.
local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
local lease, woken, counter, tombstone = found[1], found[2], found[3], found[4]
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6) -- in µs; joined as text, because formatting a number takes as long as a command
local at = ' ' .. stamp .. ' '
if found[5] ~= ARGV[1] or
  not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(ARGV[1], 1, 40), 1, true) then
  return 'changed' .. at
end

-- The node takes a proposal that is larger than every earlier fence and close to the node's time.
-- Usually the other nodes take the same proposal, so all votes have one fence. Texts of equal
-- length compare like numbers. If the counter exists, a proposal with another number of digits
-- is not taken, for example from a client whose clock is years behind.
local taken = (not counter or #counter == #ARGV[4] and counter < ARGV[4]) and
  #stamp == #ARGV[6] and #stamp == #ARGV[7] and stamp >= ARGV[6] and stamp <= ARGV[7]
if taken and not lease and not woken and not tombstone and not ARGV[8] then
  redis.call('SET', KEYS[4], ARGV[5], 'GET') -- the option GET raises an error for data that is no counter; MGET raises none
  if not redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3], 'NX') then
    redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
  end
  return '1 ' .. stamp
end

if tombstone then
  if string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked' .. at .. string.sub(tombstone, 9)
  end
  return 'undone' .. at
end
if ARGV[8] == '1' and redis.call('GET', KEYS[7]) then
  return 'done' .. at
end

local token, inbox = string.match(ARGV[2], '^([^:]*)'), ARGV[9] or ''
local owner = token .. ':'
if lease and string.sub(lease, 1, #owner) == owner then
  redis.call('GETEX', KEYS[1])
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  return 'granted' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
end

local entry = inbox ~= '' and token .. '|' .. inbox .. '|' .. ARGV[8]
if lease or woken and woken ~= token then
-- fragments
  -- GETEX changes nothing, but a lagging replica refuses it with READONLY, and so never answers a
  -- false "busy". After GETEX, a full server accepts the writes that follow.
  redis.call('GETEX', KEYS[1])
  local place, listening = nil, '-'
  if entry then
    redis.call('ZADD', KEYS[2], ARGV[10], entry)
    redis.call('PEXPIRE', KEYS[2], '60000')
    place, listening = redis.call('ZRANK', KEYS[2], entry) + 1, hearing(inbox)
  else
    place = redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1
  end
  local left, holder = redis.call('PTTL', KEYS[1]), lease
  if not lease then
    left, holder = redis.call('PTTL', KEYS[3]), woken .. ':0:0'
  end
  return 'busy' .. at .. left .. ' ' .. place .. ' ' .. listening .. ' ' .. holder
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
redis.call('SET', KEYS[4], ends, 'GET') -- the option GET raises an error for data that is no counter
if not redis.call('SET', KEYS[1], lease, 'PX', ARGV[3], 'NX') then
  redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
end
if entry then
  redis.call('ZREM', KEYS[2], entry)
end
if woken then
  redis.call('DEL', KEYS[3])
end
return 'granted' .. at .. ARGV[3] .. ' ' .. lease
