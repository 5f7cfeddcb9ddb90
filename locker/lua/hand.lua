-- hand.lua: give a free key to whoever has waited longest and still lives.
--
-- fragment: listeners(inbox) · publish(inbox, message) · forget(inbox, entry) · tell(now, but, after, ms) · hand(now, stamp, counter, own, head)
-- KEYS: lease L · queue Q
-- returns: hand: what lies in L now and for how many ms, or nil when L stays free, because nobody is left in Q or own,
--          which has left Q then, is first · listeners: how many, 1 when it cannot be found out · publish: how many have
--          heard it, or an error · forget, tell: nothing
-- idempotent: no; for scripts that a second execution does not bring here. L is free, and what can be of another type was
--   looked at: nothing here must fail half-way. Something that memory cannot refuse was written before.
-- first write: ZREM of the dead, ZADD of the one that is served: in place, so it needs no memory, and passes anyhow.
--
-- An entry of Q is token|inbox|hand-ms|mode|block|once|metadata. Its score is its ticket, negative once the key was
-- handed to it. Whoever confirms that, or releases, takes the entry out.
-- An inbox is a channel: on a Redis Cluster a sharded one, whose name says so, and which lies in L's slot.
local function sharded(inbox)
  return string.sub(inbox, 1, 11) == 'latchkit:s:'
end

local function listeners(inbox)
  local found = redis.pcall('PUBSUB', sharded(inbox) and 'SHARDNUMSUB' or 'NUMSUB', inbox)
  return found[2] or 1
end

local function publish(inbox, message)
  if sharded(inbox) then
    return redis.pcall('SPUBLISH', inbox, message)
  end
  return redis.pcall('PUBLISH', inbox, message)
end

-- forget takes all entries of a process out that is gone or does not react; without an inbox nobody knows whose they are.
local function forget(inbox, entry)
  if inbox == '-' then
    return redis.call('ZREM', KEYS[2], entry)
  end
  for _, other in ipairs(redis.call('ZRANGE', KEYS[2], '0', '-1')) do
    if string.match(other, '^[^|]*|([^|]*)|') == inbox then
      redis.call('ZREM', KEYS[2], other)
    end
  end
end

-- tell lets the first waiter that has waited longer than after, in µs, know that the key is free in ms at the latest. Not
-- the inbox but: if that does not react, somebody else must.
local function tell(now, but, after, ms)
  local from = 0
  while true do
    local page = redis.call('ZRANGE', KEYS[2], from, from + 7, 'WITHSCORES')
    for i = 1, #page, 2 do
      local token, inbox = string.match(page[i], '^([^|]*)|([^|]*)|')
      if tonumber(page[i + 1]) > now - after then
        return -- nor have those behind
      end
      if token and inbox ~= '-' and inbox ~= but and
        publish(inbox, string.format('head %s %s %s', ms, token, KEYS[1])) ~= 0 then
        return
      end
    end
    if #page < 16 then
      return
    end
    from = from + 8
  end
end

-- head is the first two of Q with their scores where the caller knows them, else nil.
local function hand(now, stamp, counter, own, head)
  while true do
    local first = head or redis.call('ZRANGE', KEYS[2], '0', '1', 'WITHSCORES')
    head = nil
    local entry, ticket = first[1], tonumber(first[2])
    if not entry then
      return nil
    end
    local token, inbox, ms, block, metadata =
      string.match(entry, '^([^|]+)|([^|]+)|([1-9]%d*)|[^|]*|([1-9]%d*)|[^|]*|(.*)$')
    if not token then
      redis.call('ZREM', KEYS[2], entry) -- not written by us
    elseif token == own then
      redis.call('ZREM', KEYS[2], entry)
      return nil
    elseif ticket < 0 then
      forget(inbox, entry) -- it was handed the key, and let it lapse without a sign of life
    elseif inbox ~= '-' and listeners(inbox) == 0 then
      forget(inbox, entry)
    else
      redis.call('ZADD', KEYS[2], string.format('%.0f', -math.max(ticket, 1)), entry)
      local lease, fence, reserved = grant(now, stamp, counter, token, ms, block, metadata)
      if inbox ~= '-' then -- a message that may not be sent is a lost one: the waiter asks again
        publish(inbox,
          'granted ' .. stamp .. ' ' .. fence .. ' ' .. reserved .. ' ' .. ms .. ' ' .. token .. ' ' .. KEYS[1])
      end
      if first[4] and tonumber(first[4]) <= now - 500000 then
        tell(now, inbox, 500000, ms)
      end
      return lease, ms
    end
  end
end
