-- sem_release.lua: give units back, keep them without an owner, leave the queue, or make sure that
-- a late acquire takes nothing. Then grant the free units to the waiters.
--
-- KEYS: lease L · queue Q · fence counter C · permits P · uses U · tombstone X of the token ·
--   [done mark D]
-- ARGV: token · [the token's entry in Q, "" when there is none · for how long to keep the units,
--   in ms, 0: none · for how long to set the tombstone, in ms, 0: none · for how long to set the
--   done mark, in ms, 0: none]
-- returns: "released" · "not-ours" server-µs · "revoked" server-µs reason · "done" server-µs when
--   the token holds nothing, but a done mark was asked for and exists; as one string
-- idempotent: a second execution finds the token neither in P nor in L, and changes only the
--   tombstone's expiry.
-- first write: DEL, ZREM or PEXPIRE when the token holds units, otherwise GETEX of X, which changes
--   nothing. A full server accepts these writes, and all writes that follow. A replica refuses them
--   with READONLY, and so never answers a false "not ours".
local token = ARGV[1]
local lease = redis.call('MGET', KEYS[1])[1] -- unlike GET, MGET raises no error for data that is no lock
if not ARGV[3] and lease and string.sub(lease, 1, 8) == 'permits:' and redis.call('HLEN', KEYS[5]) == 2 and
  redis.call('ZCARD', KEYS[4]) == 1 and redis.call('HGET', KEYS[5], token) and redis.call('EXISTS', KEYS[2]) == 0 then
  -- The usual case: this is the only permit, and there are no waiters.
  redis.call('DEL', KEYS[1], KEYS[4], KEYS[5])
  return 'released'
end

-- fragments

local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local now = tonumber(stamp)
local at = ' ' .. stamp .. ' '
local entry = ARGV[2] or ''
local keep, undo, done = tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 0), tonumber(ARGV[5] or 0)

-- If a key has data of another type, the script must fail before its first write, because an error
-- reply counts as proof that the release had no effect.
local owner = token .. ':'
local alone = lease and string.sub(lease, 1, #owner) == owner
look(now, stamp, redis.call('GET', KEYS[3]), lease)
local use = not alone and all.held > 0 and redis.call('HGET', KEYS[5], token)
local held = use and redis.call('ZSCORE', KEYS[4], token)
local ours = alone or held and not all.alone and tonumber(held) > all.ms
redis.call('EXISTS', KEYS[2])
local known = done > 0 and redis.call('GET', KEYS[7])
local revoked, head, left = nil, nil, 0

if alone and keep > 0 then
  redis.call('PEXPIRE', KEYS[1], keep)
elseif alone then
  redis.call('DEL', KEYS[1])
elseif use then
  -- The traceparent stands between two \1 bytes, as in a lease: see releaser in hand.lua. The
  -- function "handed" in permits.lua adds the traceparent to its message.
  local trace = string.match(use, '|\1([%x-]+)\1')
  all.by = trace and '|' .. trace
  leave(token)
else
  local tombstone = redis.call('GETEX', KEYS[6])
  revoked = string.match(tombstone or '', '^revoked:(.*)$')
end
if undo > 0 and not revoked then
  redis.call('SET', KEYS[6], 'undone', 'PX', undo)
end
if alone then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0') -- a hand-off without a confirmation is over now
elseif entry ~= '' then
  local two = redis.call('ZRANGE', KEYS[2], '0', '1', 'WITHSCORES')
  -- If the first entry already got the key by hand-off, the next waiter is the second entry.
  head = two[2] and tonumber(two[2]) < 0 and two[3] or two[1]
  left = redis.call('ZREM', KEYS[2], entry)
end
if ours and done > 0 then
  redis.call('SET', KEYS[7], '1', 'PX', done)
  finished()
end
if alone and keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
  tell(now, nil, -math.huge, keep)
  return 'released'
elseif ours and keep > 0 then
  local fence, w, n = string.match(use, '^(%d+)|%d+|(%d+)|(%d+)|')
  put('kept-' .. fence, table.concat({fence, '1', w, n, '0', '-', ''}, '|'), tonumber(w), tonumber(n), keep)
elseif alone then
  look(now, stamp, all.counter, false)
end

if not all.alone and not all.broken then
  if all.held > 0 then
    reap()
  end
  if redis.call('EXISTS', KEYS[2]) == 1 then
    redis.call('GETEX', KEYS[1])
    supply(nil)
  end
end
settle()
-- The waiter behind the entry is the head now, and only this script can notify it.
if left == 1 and head == entry then
  tell(now, nil, -math.huge, (all.alone or all.broken) and math.max(redis.call('PTTL', KEYS[1]), 1) or earliest())
elseif ours and keep > 0 then
  tell(now, nil, -math.huge, earliest())
end
if ours then
  return 'released'
elseif revoked then
  return 'revoked' .. at .. revoked
elseif known then
  return 'done' .. at
end
return 'not-ours' .. at
