-- rw_release.lua: release the lease of a writer, or keep its key locked without an owner, remove a
-- reader from R, remove the token from the queue, or make sure that a late acquire takes nothing.
-- Then hand the key to the next waiter.
--
-- KEYS: lease L · queue Q · fence counter C · readers R · tombstone X of the token · done mark D ·
--   tombstone of the phase, or again X
-- ARGV: token · for how long to keep L of a writer, in ms, 0: none · for how long to set the
--   tombstone, in ms, 0: none · for how long to set the done mark, in ms, 0: none · the token's entry
--   in Q, "" when there is none · the token's entry in R · "|" and the traceparent of the token's
--   lease, or ""
-- returns: as release.lua
-- idempotent: a second execution finds the token neither in L nor in R, and changes only the
--   tombstone's expiry.
-- first write: DEL or PEXPIRE when the token holds L, ZREM when the token is a reader, otherwise
--   GETEX of X, which changes nothing. A full server accepts these writes, and all that follow. A
--   replica refuses them with READONLY, and so never answers a false "not ours".
local owner = ARGV[1] .. ':'
local found = redis.call('MGET', KEYS[1], KEYS[3])
local lease, counter = found[1], found[2]
local ours = lease and string.sub(lease, 1, #owner) == owner
local first = ours and redis.call('ZRANGE', KEYS[2], '0', '0', 'WITHSCORES')
if ours and not first[1] and ARGV[2] == '0' and ARGV[3] == '0' and ARGV[4] == '0' then
  redis.call('DEL', KEYS[1])
  return 'released'
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = string.format('%.0f', now)
local at = ' ' .. stamp .. ' '
local keep, undo, done = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local phase = lease and string.sub(lease, 1, 7) == 'shared:'
local ends = phase and redis.call('ZSCORE', KEYS[4], ARGV[6])
local reads = ends and tonumber(ends) > now / 1000
if not ours and not reads then
  local revoked = string.match(redis.call('GETEX', KEYS[5]) or '', '^revoked:(.*)$')
  -- The tombstone is set under the token's key X, because a late acquire does not read the phase's
  -- tombstone.
  if undo > 0 and not revoked then
    redis.call('SET', KEYS[5], 'undone', 'PX', undo)
  end
  revoked = revoked or string.match(redis.call('GET', KEYS[7]) or '', '^revoked:(.*)$')
  local left, head = 0, nil
  if ARGV[5] ~= '' then
    local two = redis.call('ZRANGE', KEYS[2], '0', '1', 'WITHSCORES')
    -- If the first entry already got the key by hand-off, the next waiter is the second entry.
    head = two[2] and tonumber(two[2]) < 0 and two[3] or two[1]
    left = redis.call('ZREM', KEYS[2], ARGV[5])
  end
  if not lease and redis.call('EXISTS', KEYS[2]) == 1 then
    -- L has run out. The token that leaves may be the only waiter that would have noticed this
    -- soon, so this script hands the key on.
    redis.call('GETEX', KEYS[1])
    redis.call('ZCARD', KEYS[4])
    serve(now, stamp, counter or redis.call('GET', KEYS[3]), nil, nil)
  elseif phase and left == 1 and redis.call('EXISTS', KEYS[2]) == 1 and not blocked() then
    admit(now, stamp, lease, nil) -- these readers were behind a writer, which has left
  -- The waiter behind the entry is the head now, and only this script can notify it.
  elseif lease and left == 1 and head == ARGV[5] then
    tell(now, nil, -math.huge, math.max(redis.call('PTTL', KEYS[1]), 1))
  end
  if revoked then
    return 'revoked' .. at .. revoked
  end
  if done > 0 and redis.call('GET', KEYS[6]) then
    return 'done' .. at
  end
  return 'not-ours' .. at
end

-- If a key has data of another type, the script must fail before its first write, because an error
-- reply counts as proof that the release had no effect.
local waiting = redis.call('ZCARD', KEYS[2]) > 0
redis.call('ZCARD', KEYS[4])
if waiting and not counter then
  redis.call('GET', KEYS[3])
end
if undo > 0 then
  redis.call('GET', KEYS[5])
end
if done > 0 then
  redis.call('GET', KEYS[6])
end

if reads then
  redis.call('ZREM', KEYS[4], ARGV[6])
  if ARGV[5] ~= '' then
    redis.call('ZREM', KEYS[2], ARGV[5])
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now / 1000))
elseif keep > 0 then
  redis.call('PEXPIRE', KEYS[1], keep)
else
  redis.call('DEL', KEYS[1])
end
if undo > 0 then
  redis.call('SET', KEYS[5], 'undone', 'PX', undo)
end
if ours and first[1] then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0') -- a hand-off without a confirmation is over now
end
if done > 0 then
  redis.call('SET', KEYS[6], '1', 'PX', done)
  if waiting then
    finished()
  end
end
if reads then
  local last = redis.call('ZRANGE', KEYS[4], '-1', '-1', 'WITHSCORES')
  if last[1] then -- L must run out together with the last remaining reader
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', last[2] - math.floor(now / 1000)))
    if done > 0 and not blocked() then
      admit(now, stamp, lease, nil) -- the waiters before these readers have left, because the work is done
    end
  else
    redis.call('DEL', KEYS[1])
    if waiting then
      serve(now, stamp, counter, nil, nil, ARGV[7])
    end
  end
elseif keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
  tell(now, nil, -math.huge, keep)
elseif waiting then
  serve(now, stamp, counter, nil, 'readers', ARGV[7])
end
return 'released'
