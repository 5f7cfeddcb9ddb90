-- sem_acquire.lua: grant w of n units of a key to a token; if they are in use, queue.
--
-- KEYS: lease L · queue Q · fence counter C · permits P · uses U · tombstone X of the token ·
--   [done mark D]
-- ARGV: token · ttl in ms · fences to reserve · w · n · [how the token waits:
--   inbox|hand-ms|w/n|block|once as in an entry of Q, "" when it does not queue · metadata · "1"
--   when the done mark counts, and is among KEYS]
-- returns: as acquire.lua. The L of "granted" is token:fence:block. The PTTL of "busy" is the time
--   until the next permit runs out, or the PTTL of L when the key is not held by permits. The L of
--   "busy" is kept:fence when Rule.KeepFor keeps the permit that runs out next.
-- idempotent: a second execution that finds the token in P returns the fence and block in U, and at
--   most lengthens the permit. It finds the token in L when a script without permits has handed the
--   key to the token. It finds the token in Q when the token waits, and then the token keeps its
--   place. After an undo, it finds X and grants nothing.
-- first write: SET C for units that are free without waiters. When a full server refuses it,
--   nothing has happened. Otherwise the first write is GETEX, ZREM, PEXPIRE or ZREMRANGEBYSCORE,
--   which may change nothing. A full server accepts these commands, and every replica refuses them.

-- This is the short way for one fence of a free key without waiters. It has the same effect as the
-- long way below.
if ARGV[3] == '1' and not ARGV[8] and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6]) == 0 then
  local clock, last = redis.call('TIME'), redis.call('GET', KEYS[3])
  local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
  if not last or #last == #stamp and last < stamp then
    local ttl = tonumber(ARGV[2])
    local life = string.format('%.0f', ttl + 60000)
    redis.call('SET', KEYS[3], stamp)
    redis.call('SET', KEYS[1], 'permits:' .. stamp .. ':1', 'PX', ARGV[2])
    redis.call('ZADD', KEYS[4], string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000) + ttl), ARGV[1])
    redis.call('HSET', KEYS[5],
      ARGV[1], table.concat({stamp, '1', ARGV[4], ARGV[5], '0', '-', ARGV[7] or ''}, '|'),
      '=', ARGV[5] .. '|' .. string.format('%.0f', ARGV[4] - 1) .. '|0|' .. stamp .. '||0')
    redis.call('PEXPIRE', KEYS[4], life)
    redis.call('PEXPIRE', KEYS[5], life)
    return stamp .. ' ' .. stamp
  end
end

-- fragments

local token, ttl, waits, metadata = ARGV[1], tonumber(ARGV[2]), ARGV[6] or '', ARGV[7] or ''
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local now = tonumber(stamp)
local at = ' ' .. stamp .. ' '

local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[6])
local lease, counter = found[1], found[2]
local answer = known(at, ARGV[1], ARGV[2], lease, found[3], ARGV[8])
if answer then
  return answer
end

look(now, stamp, counter or redis.call('GET', KEYS[3]), lease)
local use, lapsed = all.held > 0 and redis.call('HGET', KEYS[5], token), false
if use and not all.alone then
  redis.call('GETEX', KEYS[1])
  confirm(token, use, ttl)
  settle()
  return 'granted' .. at .. ARGV[2] .. ' ' .. token .. ':' .. string.match(use, '^(%d+)|') .. ':' .. string.match(use, '^%d+|(%d+)|')
elseif use then
  leave(token) -- while L was missing, another program took the key, so this permit is lost
  lapsed = true
end

local fence, block
if not all.alone and not all.broken then
  if all.held > 0 then
    reap()
  end
  if redis.call('EXISTS', KEYS[2]) == 1 then -- no token overtakes the queue
    redis.call('GETEX', KEYS[1])
    fence, block = supply(token, ARGV[2])
  end
  local w, n = tonumber(ARGV[4]), tonumber(ARGV[5])
  if not fence and fits(w, n) then
    if exhausted(all.counter) then -- the script raises the error even while others wait, so that waiters, too, learn that no units can be granted
      settle()
      usable(all.counter)
    end
    if redis.call('EXISTS', KEYS[2]) == 0 then
      fence, block = take({token = token, inbox = '-', w = w, n = n, block = ARGV[3], metadata = metadata}, ARGV[2], false)
    end
  end
end
settle()
if fence then
  return 'granted' .. at .. ARGV[2] .. ' ' .. token .. ':' .. fence .. ':' .. block
end

local left = (all.alone or all.broken) and redis.call('PTTL', KEYS[1]) or earliest()
if all.held > 0 and all.head ~= '' and all.head ~= token and not all.alone and all.held + all.extra < all.limit then
  -- If the head has not asked by then, the next script drops it from Q.
  left = math.min(left, math.max(all.seen + 3001 - all.ms, 1))
end
local place, listening
if waits ~= '' then
  local entry = token .. '|' .. waits .. '|' .. metadata
  place, listening = queue(now, entry, string.match(waits, '^[^|]*'))
  if lapsed then -- this token was the first, and stays the first
    redis.call('ZADD', KEYS[2], '1', entry)
    place = 1
  end
else
  -- GETEX changes nothing, but a lagging replica refuses it with READONLY, and so never answers a
  -- false "busy". GETEX must not run earlier: see acquire.lua.
  redis.call('GETEX', KEYS[1])
  place, listening = redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1, '-'
end
local holder, first = all.lease or '', not all.alone and not all.broken and redis.call('ZRANGE', KEYS[4], '0', '0')[1]
if first and string.sub(first, 1, 5) == 'kept-' then
  holder = 'kept:' .. string.sub(first, 6)
end
return 'busy' .. at .. left .. ' ' .. place .. ' ' .. listening .. ' ' .. holder
