-- rw_acquire.lua: grant the lease to a token, alone or as one of its readers; otherwise return the
-- holder and queue.
--
-- KEYS: lease L · queue Q · fence counter C · readers R · tombstone X of the token · done mark D
-- ARGV: token · ttl in ms · fences to reserve · "1" when the done mark counts, otherwise "0" ·
--   metadata, may be "" · how the token waits: inbox|hand-ms|mode|block|once as in an entry of Q,
--   "" when it does not queue · the token's entry in R · "1" for a reader, "0" for a writer
-- returns: as acquire.lua; for a reader also "entered" server-µs PTTL writers L, where writers is
--   "1" when a writer waits
-- idempotent: a second execution that finds the token in L or in R returns the same L, and at most
--   lengthens its expiry. If it finds the token in Q, the token keeps its place. After an undo, it
--   finds X and grants nothing.
-- first write: SET C for a free L without waiters, ZADD of a reader that enters a phase. When a
--   full server refuses it, nothing has happened. Otherwise the first write is GETEX, PEXPIRE, ZREM
--   or ZREMRANGEBYSCORE. A full server accepts these commands, and every replica refuses them.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = string.format('%.0f', now)
local at = ' ' .. stamp .. ' '

local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[5])
local lease, counter = found[1], found[2]
local answer = known(at, ARGV[1], ARGV[2], lease, found[3], ARGV[4])
if answer then
  return answer
end
local member, reader = ARGV[7], ARGV[8] == '1'

-- entered lengthens the token's part in the phase, or makes the token a reader of the phase.
local function entered()
  enter(now, member, ARGV[2])
  return 'entered' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. redis.call('EXISTS', KEYS[2]) .. ' ' .. lease
end

-- reads returns whether L is a phase of which the token is a reader.
local function reads()
  if not lease or string.sub(lease, 1, 7) ~= 'shared:' then
    return false
  end
  local ends = redis.call('ZSCORE', KEYS[4], member)
  return ends and tonumber(ends) > now / 1000
end

if reads() then
  return entered()
end
local left
if lease then
  left = redis.call('PTTL', KEYS[1])
  if reader and string.sub(lease, 1, 7) == 'shared:' then
    if redis.call('EXISTS', KEYS[2]) == 0 then
      remember(now)
      return entered()
    elseif not blocked() then
      redis.call('GETEX', KEYS[1])
      remember(now)
      admit(now, stamp, lease, ARGV[1]) -- the writer ahead of the readers is gone
      return entered()
    end
  end
  if ARGV[6] == '' then
    redis.call('GETEX', KEYS[1]) -- GETEX must not come earlier: see acquire.lua
  end
elseif redis.call('EXISTS', KEYS[2], KEYS[5]) > 0 then
  -- No token overtakes the queue. If a key has data of another type, the script must fail before it
  -- changes anything.
  redis.call('GETEX', KEYS[1])
  redis.call('GET', KEYS[5])
  redis.call('ZCARD', KEYS[4])
  lease, left = serve(now, stamp, counter or redis.call('GET', KEYS[3]), ARGV[1], nil)
  if reads() or lease and reader and string.sub(lease, 1, 7) == 'shared:' and not blocked() then
    return entered()
  end
end
if not lease and reader then
  redis.call('ZCARD', KEYS[4])
  lease = grant(now, stamp, counter, 'shared', ARGV[2], '1', ARGV[5])
  redis.call('DEL', KEYS[4])
  return entered()
elseif not lease then
  local rest = redis.call('EXISTS', KEYS[4])
  lease = grant(now, stamp, counter, ARGV[1], ARGV[2], ARGV[3], ARGV[5])
  if rest == 1 then
    redis.call('DEL', KEYS[4]) -- R still has the readers of a phase whose L was removed
  end
  return 'granted' .. at .. ARGV[2] .. ' ' .. lease
end

local place, listening
if ARGV[6] ~= '' then
  place, listening = queue(now, ARGV[1] .. '|' .. ARGV[6] .. '|' .. ARGV[5], string.match(ARGV[6], '^[^|]*'))
  if place == 1 and not reader and string.sub(lease, 1, 7) == 'shared:' then
    announce() -- announced with each request of the writer, because a message may be lost
  end
else
  place, listening = redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1, '-'
end
return 'busy' .. at .. left .. ' ' .. place .. ' ' .. listening .. ' ' .. lease
