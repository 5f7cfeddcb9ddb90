-- hand.lua: hand a free key to the first live waiter.
--
-- fragment: listeners(inbox) · notify(inbox, message) · releaser(lease) · remove(entries) ·
--   forget(page, i, processes, gone) · tell(now, but, after, ms) · hand(now, stamp, counter, own,
--   head, by)
-- KEYS: lease L · queue Q
-- returns: releaser: "|" and the traceparent that is stored with a lease, or "" · hand: the new
--   value of L and its TTL in ms, or nil when L stays free, because Q has no live waiter, or C has
--   no larger fence, or own is the first waiter; own then has left Q · listeners: the number of the
--   inbox's subscribers, 1 when the server does not report it · notify: the number of subscribers
--   that have received the message, or an error · remove, forget, tell: nothing
-- idempotent: no. A script may use this fragment only if a second execution of the script does not
--   reach it. The script has found L free, and has checked the types of all keys, because nothing
--   here may fail half-way. The script has also made a write that a full server accepts.
-- first write: ZREM of dead waiters, or ZADD of the waiter that is granted the key. The script has
--   written before, so a full server accepts both.
--
-- An entry of Q is token|inbox|hand-ms|mode|block|once|metadata. The score of an entry is its
-- ticket. The ticket becomes negative when the key is handed to the entry's token, and the token's
-- confirmation or release removes the entry. An inbox is the name of a channel. The prefix
-- latchkit:s: marks a sharded channel of a Redis Cluster, which is in L's slot.
-- messages
local function sharded(inbox)
  return string.sub(inbox, 1, 11) == 'latchkit:s:'
end

local function listeners(inbox)
  local found = redis.pcall('PUBSUB', sharded(inbox) and 'SHARDNUMSUB' or 'NUMSUB', inbox)
  return found[2] or 1
end

local function notify(inbox, message)
  if sharded(inbox) then
    return redis.pcall('SPUBLISH', inbox, message)
  end
  return redis.pcall('PUBLISH', inbox, message)
end
-- without messages: local function listeners() return 1 end
-- without messages: local function notify() return 1 end
-- end of messages

-- releaser returns the text that hand adds to the token in its message. From this text, the waiter
-- learns which lease was released.
local function releaser(lease)
  local trace = string.match(lease, '^[^:]*:%d+:%d+:\1([%x-]+)\1')
  return trace and '|' .. trace or ''
end

-- remove removes entries of Q.
local function remove(entries)
  for _, entry in ipairs(entries) do
    redis.call('ZREM', KEYS[2], entry)
  end
end

-- forget removes from Q each entry of "page" (from index i on) whose inbox is in the table
-- "processes". These processes are gone or do not react. It also removes the entries in the list
-- "gone".
local function forget(page, i, processes, gone)
  if next(processes) then
    for j = i, #page, 2 do
      if processes[string.match(page[j], '^[^|]*|([^|]*)|')] then
        gone[#gone + 1] = page[j]
      end
    end
  end
  remove(gone)
end

-- tell sends a message to the first waiter that listens and has waited longer than "after" (in µs).
-- The message contains ms: the key becomes free within this time. tell skips the waiters whose
-- inbox is "but", because that process may not react, and another process must then react.
local function tell(now, but, after, ms)
  local from = 0
  while true do
    local page = redis.call('ZRANGE', KEYS[2], from, from + 7, 'WITHSCORES')
    for i = 1, #page, 2 do
      local token, inbox = string.match(page[i], '^([^|]*)|([^|]*)|')
      if tonumber(page[i + 1]) > now - after then
        return -- the waiters behind this waiter have waited for an even shorter time
      end
      if token and inbox ~= '-' and inbox ~= but and
        notify(inbox, string.format('head %s %s %s', ms, token, KEYS[1])) ~= 0 then
        return
      end
    end
    if #page < 16 then
      return
    end
    from = from + 8
  end
end

-- The parameter head has the first two entries of Q with their scores, or is nil if the caller has
-- not read them. When the first waiter is dead, hand reads the whole of Q, once, because many dead
-- processes may have one entry each. The parameter by is the result of releaser, or nil when L was
-- not released.
local function hand(now, stamp, counter, own, head, by)
  if exhausted(counter) then
    return nil -- grant would refuse half-way; the waiters learn the reason when they ask
  end
  local page = head or redis.call('ZRANGE', KEYS[2], '0', '1', 'WITHSCORES')
  local whole, gone, dead = false, {}, {}
  local i = 1
  while true do
    local entry, ticket = page[i], tonumber(page[i + 1])
    if not entry then
      forget(page, i, dead, gone)
      return nil
    end
    local token, inbox, ms, block, metadata =
      string.match(entry, '^([^|]+)|([^|]+)|([1-9]%d*)|[^|]*|([1-9]%d*)|[^|]*|(.*)$')
    local lives = token and not dead[inbox]
    if lives and token ~= own then
      if ticket < 0 then -- the key was handed to this waiter, and the hand-off lapsed without a confirmation
        lives = false
      else
        lives = inbox == '-' or listeners(inbox) > 0
      end
      -- If the entry has no inbox, it is unknown which other entries belong to its process.
      dead[inbox] = not lives and inbox ~= '-' or nil
    end
    if not lives then -- the waiter is dead, or its entry has another format
      gone[#gone + 1] = entry
      i = i + 2
      if not whole then
        page, whole, gone, i = redis.call('ZRANGE', KEYS[2], '0', '-1', 'WITHSCORES'), true, {entry}, 3
      end
    elseif token == own then
      gone[#gone + 1] = entry
      forget(page, i + 2, dead, gone)
      return nil
    else
      forget(page, i + 2, dead, gone)
      redis.call('ZADD', KEYS[2], string.format('%.0f', -math.max(ticket, 1)), entry)
      local lease, fence, reserved = grant(now, stamp, counter, token, ms, block, metadata)
      if inbox ~= '-' then -- if the ACL forbids the message, the message is lost, and the waiter asks again
        notify(inbox,
          'granted ' .. stamp .. ' ' .. fence .. ' ' .. reserved .. ' ' .. ms .. ' ' .. token .. (by or '') .. ' ' .. KEYS[1])
      end
      if page[i + 3] and tonumber(page[i + 3]) <= now - 500000 then
        tell(now, inbox, 500000, ms)
      end
      return lease, ms
    end
  end
end
