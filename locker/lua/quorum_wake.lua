-- quorum_wake.lua: tell whoever has waited longest for one node's vote that it may have it.
--
-- fragment: hearing(inbox) · say(inbox, message) · called(entry, ticket, now) · wake()
-- KEYS: lease L · queue Q · wake mark W
-- returns: hearing: how many listen, 1 when it cannot be found out · called: whether it had a place to lose · say, wake: nothing
-- idempotent: a second wake tells the same waiter again, who asks and finds out.
-- first write: ZREM of who is gone, ZADD of who is told. Whoever calls has written something that memory cannot refuse, so they pass.
--
-- An entry of Q is token|inbox|once, its score the ticket that the waiter brought: the same on all nodes, so that all wake
-- the same one. For 50 ms W keeps the vote for it against newcomers; nothing else does, so nodes that disagree delay nobody.
-- Who is told loses its place until it asks, which gives it back: a process that stands still is told first once in 10 s, and
-- nothing is kept for it after the first time.
-- An inbox is a channel: on a Redis Cluster a sharded one, whose name says so.
local function hearing(inbox)
  local found = redis.pcall('PUBSUB', string.sub(inbox, 1, 11) == 'latchkit:s:' and 'SHARDNUMSUB' or 'NUMSUB', inbox)
  return found[2] or 1
end

local function say(inbox, message)
  if string.sub(inbox, 1, 11) == 'latchkit:s:' then
    redis.pcall('SPUBLISH', inbox, message)
  else
    redis.pcall('PUBLISH', inbox, message)
  end
end

-- called takes the place of who is told, and says whether it has one to lose.
local function called(entry, ticket, now)
  redis.call('ZADD', KEYS[2], 'XX', string.format('%.0f', now + 10000000), entry)
  return ticket < now + 5000000
end

local function wake()
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local from, woken = 0, nil
  while true do
    local page = redis.call('ZRANGE', KEYS[2], from, from + 7, 'WITHSCORES')
    for i = 1, #page, 2 do
      local token, inbox = string.match(page[i], '^([^|]+)|([^|]+)|')
      if not token or hearing(inbox) == 0 then
        redis.call('ZREM', KEYS[2], page[i])
        from = from - 1
      elseif not woken then
        woken = inbox
        if called(page[i], tonumber(page[i + 1]), now) then
          redis.call('SET', KEYS[3], token, 'PX', '50')
        end
        from = from - 1
        say(inbox, 'free ' .. KEYS[1])
      elseif tonumber(page[i + 1]) > now - 500000 then
        return -- nor have those behind waited for long
      elseif inbox ~= woken then -- if the first does not react, somebody else must
        say(inbox, 'head 50 ' .. token .. ' ' .. KEYS[1])
        return
      end
    end
    if #page < 16 then
      return
    end
    from = from + 8
  end
end
