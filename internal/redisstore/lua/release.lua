-- release.lua: release a lease, keep it without an owner, leave the queue, or make sure that a
-- late acquire takes nothing. Then hand the key to the next waiter.
--
-- KEYS: lease L · queue Q · fence counter C · tombstone X of the token · [done mark D]
-- ARGV: token · [the token's entry in Q, "" when there is none · for how long to keep L, in ms, 0:
--   none · for how long to set the tombstone, in ms, 0: none · for how long to set the done mark,
--   in ms, 0: none]
-- returns: "released" · "not-ours" server-µs · "revoked" server-µs reason · "done" server-µs when
--   the token does not hold L, but a done mark was asked for and exists; as one string
-- idempotent: a second execution finds L without the token and changes only the tombstone's expiry.
-- first write: DEL, PEXPIRE or ZREM when the token holds L, otherwise GETEX of X, which changes
--   nothing. A full server accepts these writes, and all that follow. A replica refuses them with
--   READONLY, and so never answers a false "not ours".

-- The usual case comes first: there are no waiters, and the key only has to be freed. Both looks
-- are needed: only L names the owner, and no other key than Q shows a waiter. If L holds data that
-- is no lock, pcall returns the error, and L counts as the lease of another token.
local lease = redis.pcall('GET', KEYS[1])
local ours = type(lease) == 'string' and string.find(lease, ARGV[1] .. ':', 1, true) == 1
if ours and not ARGV[2] and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 'released'
end

-- messages
--
-- This is the short way for a token that may have queued. It frees the key, or hands the key to a
-- live waiter that has waited for less than 500 ms and whose fence is simply the clock's time. The
-- short way has the same effect as the long way below. The loop runs once. "break" leaves the loop
-- before anything is written, and the long way follows.
if ours and ARGV[2] and not ARGV[3] then
  repeat
    local page = redis.call('ZRANGE', KEYS[2], '0', '1', 'WITHSCORES')
    local own = page[1] == ARGV[2] -- the key came to the token by hand-off, and its entry is still in Q
    local entry, ticket = page[own and 3 or 1], page[own and 4 or 2]
    if not entry then
      redis.call('DEL', KEYS[1], KEYS[own and 2 or 1])
      return 'released'
    end
    local clock = redis.call('TIME')
    local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
    if #ticket ~= #stamp or stamp - ticket >= 500000 then -- hand may also have to notify the waiter behind this waiter
      break
    end
    local bar = string.find(entry, '|', 28, true) or 28
    local token, inbox = string.sub(entry, 1, 26), string.sub(entry, 28, bar - 1)
    local ms, block, metadata = string.match(entry, '^([1-9]%d*)|0|([1-9]%d*)|0|(.*)$', bar + 1)
    if not ms or inbox == '-' or #block > 5 or string.find(entry, '|', 1, true) ~= 27 then
      break
    end
    local last, counter = stamp, redis.call('GET', KEYS[3])
    if block ~= '1' then
      last = clock[1] .. string.format('%06d', clock[2] + block - 1)
    end
    if #last ~= #stamp or counter and (#counter ~= #stamp or counter >= stamp) then
      break
    end
    local sharded = string.sub(inbox, 1, 11) == 'latchkit:s:'
    if redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', inbox)[2] == 0 then
      break
    end
    local by = string.find(lease, '\1', 1, true) and string.match(lease, '^[^:]*:%d+:%d+:\1([%x-]+)\1')
    if own then
      redis.call('ZREM', KEYS[2], ARGV[2])
    else
      redis.call('DEL', KEYS[1])
    end
    redis.call('ZADD', KEYS[2], '-' .. ticket, entry)
    redis.call('SET', KEYS[3], last)
    redis.call('SET', KEYS[1], token .. ':' .. stamp .. ':' .. block .. ':' .. metadata, 'PX', ms)
    local message = 'granted ' .. stamp .. ' ' .. stamp .. ' ' .. block .. ' ' .. ms .. ' ' .. token ..
      (by and '|' .. by or '') .. ' ' .. KEYS[1]
    if sharded then
      redis.pcall('SPUBLISH', inbox, message)
    else
      redis.pcall('PUBLISH', inbox, message)
    end
    return 'released'
  until true
end
-- end of messages

-- fragments

local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local now = tonumber(stamp)
local at = ' ' .. stamp .. ' '
local entry = ARGV[2] or ''
local keep, undo, done = tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 0), tonumber(ARGV[5] or 0)
if not ours then
  local tombstone = redis.call('GETEX', KEYS[4])
  local revoked = tombstone and string.sub(tombstone, 1, 8) == 'revoked:'
  if undo > 0 and not revoked then
    redis.call('SET', KEYS[4], 'undone', 'PX', undo)
  end
  if entry ~= '' then
    local two = redis.call('ZRANGE', KEYS[2], '0', '1', 'WITHSCORES')
    -- If the first entry already got the key by hand-off, the next waiter is the second entry.
    local head = two[2] and tonumber(two[2]) < 0 and two[3] or two[1]
    redis.call('ZREM', KEYS[2], entry)
    if lease and head == entry then -- the waiter behind the entry is the head now, and only this script can notify it
      tell(now, nil, -math.huge, math.max(redis.call('PTTL', KEYS[1]), 1))
    end
  end
  if not lease and redis.call('EXISTS', KEYS[2]) == 1 then
    -- L has run out. The token that leaves may be the only waiter that would have noticed this
    -- soon, so this script hands the key on.
    redis.call('GETEX', KEYS[1])
    hand(now, stamp, redis.call('GET', KEYS[3]), nil)
  end
  if revoked then
    return 'revoked' .. at .. string.sub(tombstone, 9)
  end
  if done > 0 and redis.call('GET', KEYS[5]) then
    return 'done' .. at
  end
  return 'not-ours' .. at
end

-- If a key has data of another type, the script must fail before its first write, because an error
-- reply counts as proof that the release had no effect.
local first, counter = redis.call('ZRANGE', KEYS[2], '0', '2', 'WITHSCORES'), nil
if first[1] then
  counter = redis.call('GET', KEYS[3])
end
if undo > 0 then
  redis.call('GET', KEYS[4])
end
if done > 0 then
  redis.call('GET', KEYS[5])
end

if keep > 0 then
  redis.call('PEXPIRE', KEYS[1], keep)
else
  redis.call('DEL', KEYS[1])
end
if undo > 0 then
  redis.call('SET', KEYS[4], 'undone', 'PX', undo)
end
if first[1] and tonumber(first[2]) < 0 then
  if redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0') == 1 then -- this lease came by hand-off, and the hand-off is over now
    first = {first[3], first[4], first[5], first[6]}
  else
    first = redis.call('ZRANGE', KEYS[2], '0', '1', 'WITHSCORES')
  end
end
if done > 0 then
  redis.call('SET', KEYS[5], '1', 'PX', done)
  if first[1] then
    finished()
  end
end
if keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
  tell(now, nil, -math.huge, keep)
elseif first[1] then
  hand(now, stamp, counter, nil, done == 0 and first, releaser(lease))
end
return 'released'
