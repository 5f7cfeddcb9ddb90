-- permits.lua: the permits of a semaphore. While permits are held, L is permits:epoch:1. An epoch
-- begins when a free key gets a permit, and ends with the last permit. The name of the epoch is the
-- fence of the first permit. The sorted set P has the token of each permit, with the time in ms at
-- which the permit runs out. The hash U has fence|block|w|n|handed|inbox|metadata for each token.
-- The field "=" of U has the values for all permits together: limit|extra|mixed|epoch|head|seen.
--
-- In the field "=", "limit" is the smallest n of all permits. "extra" is the sum of w-1 over all
-- permits, so ZCARD P + extra units are in use. "mixed" is 1 while permits have different n. "head"
-- is the token of a waiter for which too few units are free. "seen" is the time in ms at which this
-- waiter was notified, or asked itself. P and U are authoritative, and L shows other programs that
-- the key is held. P and U outlive L by a minute, so that a script can find a permit that lapsed
-- unconfirmed, even if it was the last permit.
--
-- fragment: look(now, stamp, counter, lease) · fits(w, n) · take(e, ms, handed) · leave(token) ·
--   confirm(token, use, ms) · reap() · supply(own, ms) · settle() · earliest(); they keep their
--   state in all
-- KEYS: lease L · queue Q · fence counter C · permits P · uses U
-- returns: fits: whether w units of n can be granted · take: the first fence and the number of
--   reserved fences · leave: the inbox of a permit that was handed over and never confirmed,
--   otherwise false · supply: the first fence and the number of fences of own, nil when own was not
--   served · earliest: the ms until the next permit runs out · the others: nothing
-- idempotent: confirm only lengthens, and leave removes what exists. A script may use the other
--   functions only if its second execution does not reach them. The script has checked the types of
--   all keys, because nothing here may fail half-way.
-- first write: in take, SET C. If the script has not written before, a full server refuses this
--   SET. In leave, reap and supply, ZREM or DEL, which a full server accepts. The callers of settle
--   have written before.
local all = {}

-- look reads the state of the key and of its permits into all. "alone" is true when one owner holds
-- the key without permits, or another program holds it. "broken" is true when L shows that permits
-- are held, but P or U was evicted. If so, the permits are unknown, and the script lets L expire.
-- If only L was evicted, P and U are complete, and the permits are still held.
local function look(now, stamp, counter, lease)
  local state = redis.call('HGET', KEYS[5], '=')
  local limit, extra, mixed, epoch, head, seen =
    string.match(state or '', '^(%d+)|(%d+)|([01])|(%d+)|([^|]*)|(%d+)$')
  local held = redis.call('ZCARD', KEYS[4])
  local whole = limit and held > 0 and held + 1 == redis.call('HLEN', KEYS[5])
  all = {
    now = now, stamp = stamp, ms = math.floor(now / 1000), counter = counter, lease = lease, held = 0,
    shield = lease and string.sub(lease, 1, 8) == 'permits:',
  }
  all.alone, all.broken = lease and not all.shield, all.shield and not whole
  all.rest = not whole and (held > 0 or state)
  if whole then
    all.held, all.extra, all.limit, all.mixed = held, tonumber(extra), tonumber(limit), mixed == '1'
    all.epoch, all.head, all.seen = epoch, head, tonumber(seen)
  end
end

-- agree computes the smallest n of all permits anew, after a permit was removed.
local function agree()
  all.left, all.limit, all.mixed = false, nil, false
  for _, use in ipairs(redis.call('HGETALL', KEYS[5])) do -- HGETALL also returns the names of fields, which have no | and do not match
    local n = tonumber(string.match(use, '^%d+|%d+|%d+|(%d+)|[01]|') or '')
    if n then
      all.mixed = all.mixed or all.limit ~= nil and all.limit ~= n
      all.limit = math.min(all.limit or n, n)
    end
  end
end

local function fits(w, n)
  if all.alone or all.broken then
    return false
  elseif all.held == 0 then
    return w <= n
  elseif all.left and all.mixed then
    agree()
  end
  return all.held + all.extra + w <= math.min(n, all.limit)
end

-- put writes a permit.
local function put(token, use, w, n, ms)
  redis.call('ZADD', KEYS[4], string.format('%.0f', all.ms + ms), token)
  redis.call('HSET', KEYS[5], token, use)
  if all.held == 0 then
    all.extra, all.limit, all.mixed, all.head, all.seen = 0, n, false, '', 0
  end
  all.mixed = all.mixed or all.limit ~= n
  all.limit, all.held, all.extra, all.changed = math.min(all.limit, n), all.held + 1, all.extra + w - 1, true
end

local function take(e, ms, handed)
  usable(all.counter)
  local fence, block, last = mint(all.now, all.stamp, all.counter, e.block)
  redis.call('SET', KEYS[3], last)
  all.counter = last
  if all.held == 0 then
    all.epoch = fence
    if all.rest then
      redis.call('DEL', KEYS[4], KEYS[5])
      all.rest = false
    end
  end
  local lease = 'permits:' .. all.epoch .. ':1'
  if lease ~= all.lease then
    if all.shield then -- L still has the text of an epoch that is over
      redis.call('DEL', KEYS[1])
    end
    if not redis.call('SET', KEYS[1], lease, 'PX', ms, 'NX') then
      redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
    end
    all.lease, all.shield = lease, true
  end
  local use = table.concat({fence, block, e.w, e.n, handed and '1' or '0', e.inbox, e.metadata}, '|')
  put(e.token, use, e.w, e.n, tonumber(ms))
  return fence, block
end

local function leave(token)
  local use = redis.call('HGET', KEYS[5], token) or '0|1|1|1|0|-|'
  local w, handed, inbox = string.match(use, '^%d+|%d+|(%d+)|%d+|([01])|([^|]*)|')
  redis.call('ZREM', KEYS[4], token)
  redis.call('HDEL', KEYS[5], token)
  all.held, all.extra, all.changed, all.left = all.held - 1, all.extra - w + 1, true, true
  return handed == '1' and inbox
end

-- confirm makes a permit last longer, because its owner lives.
local function confirm(token, use, ms)
  if string.match(use, '^%d+|%d+|%d+|%d+|1|') then
    redis.call('HSET', KEYS[5], token, (string.gsub(use, '^(%d+|%d+|%d+|%d+)|1|', '%1|0|')))
  end
  redis.call('ZADD', KEYS[4], 'XX', 'GT', string.format('%.0f', all.ms + ms), token)
  all.changed = true
end

-- drop removes a waiter, and all other waiters of its process.
local function drop(entry, inbox)
  if inbox == '-' then
    redis.call('ZREM', KEYS[2], entry)
  else
    forget(redis.call('ZRANGE', KEYS[2], '0', '-1', 'WITHSCORES'), 1, {[inbox] = true}, {})
  end
end

-- reap takes back the permits that have run out. If a process did not confirm such a permit after
-- a hand-off, the process does not react, so it loses its places in Q too.
local function reap()
  local lapsed = {}
  for _, token in ipairs(redis.call('ZRANGE', KEYS[4], '-inf', all.ms, 'BYSCORE', 'LIMIT', '0', '100')) do
    local inbox = leave(token)
    if inbox and inbox ~= '-' then
      lapsed[inbox] = true
    end
  end
  if next(lapsed) then
    forget(redis.call('ZRANGE', KEYS[2], '0', '-1', 'WITHSCORES'), 1, lapsed, {})
  end
end

local function earliest()
  local ends = redis.call('ZRANGE', KEYS[4], '0', '0', 'WITHSCORES')[2]
  return string.format('%.0f', math.max((ends or all.ms) - all.ms, 1))
end

-- settle writes the values for all permits together. It makes L last as long as the last permit,
-- and P and U a minute longer.
local function settle()
  if not all.changed and all.held > 0 and not all.shield and not all.alone then
    redis.call('GETEX', KEYS[1]) -- L is missing and is written again below; GETEX is a first write that a full server accepts
  elseif not all.changed then
    return
  end
  all.changed = false
  if all.held == 0 then
    redis.call('DEL', KEYS[4], KEYS[5])
    if all.shield then
      redis.call('DEL', KEYS[1])
      all.shield, all.lease = false, false
    end
    return
  end
  if all.left and all.mixed then
    agree()
  end
  redis.call('HSET', KEYS[5], '=', table.concat({
    string.format('%.0f', all.limit), string.format('%.0f', all.extra), all.mixed and '1' or '0', all.epoch, all.head,
    string.format('%.0f', all.seen),
  }, '|'))
  local left = math.max(redis.call('ZRANGE', KEYS[4], '-1', '-1', 'WITHSCORES')[2] - all.ms, 1)
  local life = string.format('%.0f', left + 60000)
  redis.call('PEXPIRE', KEYS[4], life)
  redis.call('PEXPIRE', KEYS[5], life)
  left = string.format('%.0f', left)
  if all.shield then
    redis.call('PEXPIRE', KEYS[1], left)
  elseif not all.alone then -- L was evicted, or a program without permits had the key for a while
    all.lease, all.shield = 'permits:' .. all.epoch .. ':1', true
    redis.call('SET', KEYS[1], all.lease, 'PX', left, 'NX')
  end
end

-- first returns the parsed head of Q. Its fields w and n are nil for a waiter that wants the key
-- alone, and for a reader.
local function first()
  while true do
    local page = redis.call('ZRANGE', KEYS[2], '0', '0', 'WITHSCORES')
    if not page[1] then
      return nil
    end
    local e = {entry = page[1], ticket = tonumber(page[2])}
    local mode
    e.token, e.inbox, e.ms, mode, e.block, e.metadata =
      string.match(page[1], '^([^|]+)|([^|]+)|([1-9]%d*)|([^|]*)|([1-9]%d*)|[^|]*|(.*)$')
    if e.token then
      e.w, e.n = string.match(mode, '^([1-9]%d*)/([1-9]%d*)$')
      e.w, e.n = tonumber(e.w), tonumber(e.n)
      return e
    end
    redis.call('ZREM', KEYS[2], page[1]) -- the entry has an unknown format
  end
end

-- watch is called when too few units are free for the head. It notifies a new head, which then asks
-- at once. It also notifies a waiter of another process, which asks 3 s later. If the head has not
-- asked by then, its process does not react, and the head must not keep free units from the other
-- waiters. watch returns whether the head keeps its place.
local function watch(e, own)
  if e.token ~= own and all.head == e.token then
    return all.ms - all.seen <= 3000
  end
  if e.token ~= own and e.inbox ~= '-' then
    notify(e.inbox, 'head 1 ' .. e.token .. ' ' .. KEYS[1])
    tell(all.now, e.inbox, -math.huge, 3000)
  end
  all.head, all.seen, all.changed = e.token, all.ms, true
  return true
end

-- handed grants a permit to a waiter and notifies the waiter.
local function handed(e)
  local fence, block = take(e, e.ms, true)
  if e.inbox ~= '-' then -- if the ACL forbids the message, the message is lost, and the waiter asks again
    notify(e.inbox, 'granted ' .. all.stamp .. ' ' .. fence .. ' ' .. block .. ' ' .. e.ms .. ' ' .. e.token ..
      (all.by or '') .. ' ' .. KEYS[1])
  end
end

-- supply grants units to the waiters in their order, until the free units do not suffice for the
-- head. The parameter own is the token that asks: its permit lasts for ms, and supply does not
-- notify it. A waiter that wants the key alone gets it when no unit is in use. After 64 waiters,
-- supply notifies the new head and stops, so that the script stays short. The new head then asks,
-- and the script of its request serves the next waiters.
local function supply(own, ms)
  local served, inbox, fence, block = 0, nil, nil, nil
  while not exhausted(all.counter) do -- take would refuse half-way; the waiters learn the reason when they ask
    local e = first()
    if not e then
      break
    elseif e.token ~= own and (e.ticket < 0 or e.inbox ~= '-' and listeners(e.inbox) == 0) then
      -- Either the key was handed to this waiter alone and the hand-off lapsed, or the waiter's
      -- process is gone.
      drop(e.entry, e.inbox)
    elseif e.w and fits(e.w, e.n) then
      redis.call('ZREM', KEYS[2], e.entry)
      if e.token == own then
        fence, block = take(e, ms, false)
      else
        handed(e)
        served, inbox = served + 1, e.inbox
      end
      if served == 64 then
        tell(all.now, nil, -math.huge, 1)
        break
      end
    elseif e.w and all.held > 0 and all.held + all.extra < all.limit then
      if watch(e, own) then
        break
      end
      drop(e.entry, e.inbox)
    elseif not e.w and all.held == 0 and not all.alone and not all.broken then
      settle() -- no unit is in use, so the key is free
      local lease, left = hand(all.now, all.stamp, all.counter, own)
      all.lease, all.alone, all.ms_alone = lease, lease ~= nil, left
      break
    else
      break
    end
  end
  if inbox and served < 64 then
    tell(all.now, inbox, 500000, earliest())
  end
  return fence, block
end
