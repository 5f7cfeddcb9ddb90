-- acquire.lua: grant the lease to a token; if another token holds it, return the holder and queue.
--
-- KEYS: lease L · queue Q · fence counter C · tombstone X of the token · [done mark D]
-- ARGV: token · ttl in ms · [metadata · how the token waits: inbox|hand-ms|mode|block|once as in an
--   entry of Q, "" when it does not queue · fences to reserve when the key is free, missing: one ·
--   "1" when the done mark counts, and is among KEYS]
-- returns: server-µs fence when the lease is granted with all the fences that were asked for ·
--   "granted" server-µs PTTL L · "busy" server-µs PTTL place listeners L, where place is the
--   token's place in Q, or the place that it would get if it does not queue, and listeners is "-"
--   for a token without an inbox · "undone" server-µs · "revoked" server-µs reason · "done"
--   server-µs. The answer is one string with spaces between the words, and the client reads one
--   word after the other.
-- idempotent: a second execution that finds the token in L returns the same L, and at most
--   lengthens its expiry. If it finds the token in Q, the token keeps its place. After an undo, it
--   finds X and grants nothing.
-- first write: SET C for a free L without waiters. When a full server refuses it, nothing has
--   happened. Otherwise the first write is GETEX, PEXPIRE or ZREMRANGEBYSCORE, which may change
--   nothing. A full server accepts these commands, and every replica refuses them.

-- This is the short way for one fence of a free key without waiters. It has the same effect as the
-- long way below. Numbers stay text where possible, because converting one number takes as long as
-- a command. One command looks at L, Q and X: an undo of this call may have come first. X is a key
-- of the token, so no other key can show the undo.
--
-- SET … GET writes C before the script knows C's old value. This is safe, because no other command
-- runs in between: a larger old value is counted on or written back before the script ends. If C is
-- no text, SET … GET changes nothing and fails with WRONGTYPE.
if not ARGV[5] and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[4]) == 0 then
  local clock = redis.call('TIME')
  local stamp = clock[1] .. (#clock[2] == 6 and clock[2] or string.sub('00000' .. clock[2], -6))
  local fence, before = stamp, redis.call('SET', KEYS[3], stamp, 'GET')
  if before and (#before ~= #stamp or before >= stamp) then
    local ahead = #before == #stamp and tonumber(before)
    fence = ahead and ahead < stamp + 100000 and string.format('%.0f', ahead + 1)
    redis.call('SET', KEYS[3], fence or before)
  end
  if fence then -- otherwise the long way follows
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. fence .. ':1:' .. (ARGV[3] or ''), 'PX', ARGV[2])
    return stamp .. ' ' .. fence
  end
end

-- messages
--
-- This is the short way into the queue of a key that another token holds. It has the same effect as
-- the long way below. The loop runs once. "break" leaves the loop, and the long way follows.
if ARGV[4] and ARGV[4] ~= '' and not ARGV[6] then
  repeat
    local found = redis.call('MGET', KEYS[1], KEYS[4])
    local lease = found[1]
    if not lease or found[2] or string.find(lease, ARGV[1], 1, true) == 1 then
      break
    end
    local clock, place = redis.call('TIME'), redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1
    local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
    local entry = ARGV[1] .. '|' .. ARGV[4] .. '|' .. ARGV[3]
    local there = redis.call('PEXPIRE', KEYS[2], '60000')
    if redis.call('ZADD', KEYS[2], 'NX', stamp, entry) == 0 then
      break
    elseif there == 0 then
      redis.call('PEXPIRE', KEYS[2], '60000')
    elseif redis.call('ZRANGE', KEYS[2], '-1', '-1')[1] ~= entry then
      -- The clock was set back, so this ticket is not the largest. The long way makes a larger
      -- ticket.
      redis.call('ZREM', KEYS[2], entry)
      break
    end
    local inbox, listening = string.sub(ARGV[4], 1, string.find(ARGV[4], '|', 1, true) - 1), '-'
    if inbox ~= '-' then
      local count = string.sub(inbox, 1, 11) == 'latchkit:s:' and 'SHARDNUMSUB' or 'NUMSUB'
      listening = redis.pcall('PUBSUB', count, inbox)[2] or 1
    end
    return 'busy ' .. stamp .. ' ' .. redis.call('PTTL', KEYS[1]) .. ' ' .. place .. ' ' .. listening .. ' ' .. lease
  until true
end
-- end of messages

-- fragments

local metadata, waits = ARGV[3] or '', ARGV[4] or ''
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local now = tonumber(stamp)
local at = ' ' .. stamp .. ' '

-- One MGET replaces three GETs. MGET returns data of another type as missing, but grant detects
-- such data in C and L.
local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
local lease, counter = found[1], found[2]
local answer = known(at, ARGV[1], ARGV[2], lease, found[3], ARGV[6])
if answer then
  return answer
end

local left
if lease then
  left = redis.call('PTTL', KEYS[1])
  if waits == '' then
    -- GETEX changes nothing, but a lagging replica refuses it with READONLY, and so never answers a
    -- false "busy". GETEX must not run earlier: after any write, a full server accepts all other
    -- writes, also a new lease, which it must refuse. A token that queues needs no GETEX, because
    -- its entry in Q is a write.
    redis.call('GETEX', KEYS[1])
  end
elseif redis.call('EXISTS', KEYS[2], KEYS[4]) > 0 then
  -- No token overtakes the queue. If a key or a tombstone has data of another type, the script must
  -- fail before it changes anything.
  redis.call('GETEX', KEYS[1])
  redis.call('GET', KEYS[4])
  lease, left = hand(now, stamp, counter or redis.call('GET', KEYS[3]), ARGV[1])
end
if not lease then
  return 'granted' .. at .. ARGV[2] .. ' ' .. grant(now, stamp, counter, ARGV[1], ARGV[2], ARGV[5] or '1', metadata)
end

local place, listening
if waits ~= '' then
  place, listening = queue(now, ARGV[1] .. '|' .. waits .. '|' .. metadata, string.match(waits, '^[^|]*'))
else
  place, listening = redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1, '-'
end
return 'busy' .. at .. left .. ' ' .. place .. ' ' .. listening .. ' ' .. lease
