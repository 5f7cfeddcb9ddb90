-- quorum_acquire.lua: give one node's vote for a lease to a token, or say who has it, and wait in line for it.
--
-- KEYS: lease L · queue Q · wake mark W · fence counter C · tombstone X of the token · done mark D · marker N of the node
-- ARGV: token · ttl in ms · fences to reserve · "1" when the done mark counts, else "0" · metadata, may be "" · the inbox
--       where it waits, "" when it does not · the fence that the client proposes · the largest clock skew in µs · its ticket
--       · the last fence of the block if the proposal is taken
-- returns: "forgot" server-µs when the node may not vote: see quorum_enroll.lua · "granted" server-µs PTTL L · "busy"
--          server-µs PTTL place listeners holder, where listeners is "-" for who does not wait, and holder what lies in L,
--          or token:0:0 of the one for whom the vote is kept · "undone" server-µs · "revoked" server-µs reason · "done"
--          server-µs; as one string
-- idempotent: a second execution finds L with the token in it, answers with the same L and at most lengthens it; or it
--   finds the token in Q, where it keeps its ticket; after an undo it finds X.
-- first write: SET C for a free L, which a full server refuses, and then nothing has happened; otherwise GETEX or PEXPIRE,
--   which no full server refuses, and every replica.
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6) -- in µs; to format a number costs as much as a command
local at = ' ' .. stamp .. ' '

-- One MGET, not five GETs. It reads data of another type as missing.
local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[7])
local lease, woken, counter, tombstone = found[1], found[2], found[3], found[4]
if not member(found[5]) then
  return 'forgot' .. at
end
if tombstone then
  if string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked' .. at .. string.sub(tombstone, 9)
  end
  return 'undone' .. at
end
if ARGV[4] == '1' and redis.call('GET', KEYS[6]) then
  return 'done' .. at
end

if lease and string.sub(lease, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
  redis.call('GETEX', KEYS[1])
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 'granted' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
end

local entry = ARGV[6] ~= '' and ARGV[1] .. '|' .. ARGV[6] .. '|' .. ARGV[4]
local kept = not lease and woken and woken ~= ARGV[1]
if lease or kept then
  -- GETEX changes nothing, but makes a lagging replica answer READONLY instead of a false "busy", and lets the ZADD pass on a
  -- full server.
  redis.call('GETEX', KEYS[1])
  local place, listening
  if entry then
    redis.call('ZADD', KEYS[2], ARGV[9], entry)
    redis.call('PEXPIRE', KEYS[2], '60000')
    place, listening = redis.call('ZRANK', KEYS[2], entry) + 1, hearing(ARGV[6])
  else
    place, listening = redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1, '-'
  end
  local left = kept and redis.call('PTTL', KEYS[3]) or redis.call('PTTL', KEYS[1])
  return 'busy' .. at .. left .. ' ' .. place .. ' ' .. listening .. ' ' .. (lease or (woken .. ':0:0'))
end

-- The fence: larger than every one before, mostly the one that is proposed, which other nodes will take as well. A client
-- whose clock is ahead cannot drive the counter further than the skew; one that is behind gets the server's clock.
local now, skew, hint = tonumber(stamp), tonumber(ARGV[8]), tonumber(ARGV[7])
local last = counter and tonumber(counter) or 0
local fence, block, ends = ARGV[7], ARGV[3], ARGV[10]
if hint <= last or math.abs(now - hint) > skew or tonumber(ends) > now + 100000 then
  hint = math.min(hint, now + skew)
  local first, n = math.max(last + 1, hint), tonumber(block)
  if now > hint + skew then
    first = math.max(first, now)
  end
  if first + n - 1 > now + 100000 then
    n = 1
  end
  fence, block, ends = string.format('%.0f', first), string.format('%.0f', n), string.format('%.0f', first + n - 1)
end
local text = ARGV[1] .. ':' .. fence .. ':' .. block .. ':' .. fence .. ':' .. ARGV[5]
redis.call('SET', KEYS[4], ends, 'GET') -- GET: what is no counter is refused, and MGET says nothing of it
if not redis.call('SET', KEYS[1], text, 'PX', ARGV[2], 'NX') then
  redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
end
if entry then
  redis.call('ZREM', KEYS[2], entry)
end
if woken then
  redis.call('DEL', KEYS[3])
end
return 'granted' .. at .. ARGV[2] .. ' ' .. text
