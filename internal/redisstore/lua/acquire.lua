-- acquire.lua: take the lease for a token, or say who has it, and wait in line.
--
-- KEYS: lease L · queue Q · fence counter C · tombstone X of the token · [done mark D]
-- ARGV: token · ttl in ms · fences to reserve · [how it waits: inbox|hand-ms|mode|block|once as in an entry of Q, "" when it
--       does not queue · metadata · "1" when the done mark counts, and is among KEYS; then metadata may be ""]
-- returns: server-µs fence when it is granted, with all the fences that it asked for · "granted" server-µs PTTL L · "busy"
--          server-µs PTTL place listeners L, where place is what it would be for who does not queue, and listeners is
--          "-" for who has no inbox · "undone" server-µs · "revoked" server-µs reason · "done" server-µs; words with a
--          space between, as one string, which is read without taking it apart
-- idempotent: a second execution finds L with the token in it, answers with the same L and at most lengthens it; or it
--   finds the token in Q, where it keeps its place; after an undo it finds X.
-- first write: SET or INCRBY C for a free L that nobody waits for, which a full server refuses, and then nothing has happened;
--   otherwise GETEX, PEXPIRE or ZREMRANGEBYSCORE, which may change nothing: no full server refuses them, and every replica.

-- The short way, for a free key that nobody waits for: it does what the long way would do. Numbers stay text where they can,
-- because to read or write one takes as long as a command.
if not ARGV[6] and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[4]) == 0 then
  local clock, last = redis.call('TIME'), redis.call('GET', KEYS[3])
  local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
  local fence = nil
  if not last or #last == #stamp and last < stamp then
    local micros = clock[2] + ARGV[3] - 1 -- of the block's last fence
    if micros < 1000000 and #ARGV[3] < 6 then
      fence = stamp
      redis.call('SET', KEYS[3], clock[1] .. string.format('%06d', micros))
    end
  elseif #last == #stamp and (tonumber(last) or math.huge) + ARGV[3] <= stamp + 100000 then -- ahead of the clock, as grant allows
    fence = string.format('%.0f', redis.call('INCRBY', KEYS[3], ARGV[3]) - ARGV[3] + 1)
  end
  if fence then
    local lease = ARGV[1] .. ':' .. fence .. ':' .. ARGV[3]
    if ARGV[5] then
      lease = lease .. ':' .. ARGV[5]
    end
    redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
    return stamp .. ' ' .. fence
  end
end

-- fragments

local waits, metadata = ARGV[4] or '', ARGV[5] or ''
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local now = tonumber(stamp)
local at = ' ' .. stamp .. ' '

-- One MGET, not three GETs. It reads data of another type as missing: of C and L, grant finds that out.
local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
local lease, counter, tombstone = found[1], found[2], found[3]
if tombstone then
  if string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked' .. at .. string.sub(tombstone, 9)
  end
  return 'undone' .. at
end
if ARGV[6] == '1' and redis.call('GET', KEYS[5]) then
  return 'done' .. at
end

local owner = ARGV[1] .. ':'
if lease and string.sub(lease, 1, #owner) == owner then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0') -- if it was handed over, this is a sign of life
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2])) -- always: a WAIT speaks of writes only
  return 'granted' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
end

local left
if lease then
  left = redis.call('PTTL', KEYS[1])
  if waits == '' then
    -- GETEX changes nothing, but makes a lagging replica answer READONLY instead of a false "busy". Not before: after a write
    -- of any kind a full server lets all others pass, and there a new lease must be refused. Who queues writes anyway.
    redis.call('GETEX', KEYS[1])
  end
elseif redis.call('EXISTS', KEYS[2], KEYS[4]) > 0 then
  -- Nobody overtakes the queue. That a key or tombstone is data of another type must be found out before anything is done.
  redis.call('GETEX', KEYS[1])
  redis.call('GET', KEYS[4])
  lease, left = hand(now, stamp, counter or redis.call('GET', KEYS[3]), ARGV[1])
end
if not lease then
  return 'granted' .. at .. ARGV[2] .. ' ' .. grant(now, stamp, counter, ARGV[1], ARGV[2], ARGV[3], metadata)
end

local place, listening
if waits ~= '' then
  place, listening = queue(now, ARGV[1] .. '|' .. waits .. '|' .. metadata, string.match(waits, '^[^|]*'))
else
  place, listening = redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1, '-'
end
return 'busy' .. at .. left .. ' ' .. place .. ' ' .. listening .. ' ' .. lease
