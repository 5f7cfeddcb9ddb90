-- rouse.lua: at one node, notify the waiter that has waited longest.
--
-- fragment: hearing(inbox) · say(inbox, message) · rouse()
-- KEYS: lease L · queue Q · wake mark W
-- returns: hearing: how many processes listen, 1 when the number is unknown · say, rouse: nothing
-- idempotent: a second rouse notifies the same waiter again. The waiter asks the node again, which
--   does no harm.
-- first write: ZREM of a waiter that is gone, ZADD of the waiter that is notified. The calling
--   script has already made a write that a full server accepts, so the server accepts these writes
--   too.
--
-- An entry of Q is token|inbox|once: once is 1 for a waiter that leaves the queue when the work is
-- done (message "done"), otherwise 0. The score of an entry is the ticket that the waiter sent with
-- its request. The ticket is the same on all nodes, so all nodes notify the same waiter. W lasts
-- for 50 ms. While W names the waiter that was notified, the node gives its vote only to this
-- waiter. Only W reserves the node's vote, so nodes that notify different waiters delay no waiter
-- for long. A waiter that is notified loses its place in the queue until it asks again. A process
-- that stands still does not ask again. So a waiter of such a process is notified first only once
-- in 10 s, and W is not set for a waiter that has lost its place. An inbox is a channel. On a Redis
-- Cluster, it is a sharded channel, whose name begins with latchkit:s:.
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

local function rouse()
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local from, first, next, listens = 0, nil, nil, {}
  repeat
    local page = redis.call('ZRANGE', KEYS[2], from, from + 15, 'WITHSCORES')
    from = from + 16
    for i = 1, #page, 2 do
      local token, inbox = string.match(page[i], '^([^|]+)|([^|]+)|[01]$')
      if inbox and listens[inbox] == nil then
        listens[inbox] = hearing(inbox) > 0
      end
      if not inbox or not listens[inbox] then
        redis.call('ZREM', KEYS[2], page[i])
        from = from - 1
      elseif not first then
        first = {token = token, inbox = inbox, entry = page[i], ticket = tonumber(page[i + 1])}
      elseif not next and inbox ~= first.inbox and tonumber(page[i + 1]) < now - 500000 then
        next = {token = token, inbox = inbox}
      end
    end
  until #page < 32 or first
  if not first then
    return
  end
  redis.call('ZADD', KEYS[2], 'XX', string.format('%.0f', now + 10000000), first.entry)
  say(first.inbox, 'free ' .. KEYS[1])
  if next then -- if the process of the first waiter does not react, this second process must react
    say(next.inbox, 'head 50 ' .. next.token .. ' ' .. KEYS[1])
  end
  if first.ticket < now + 5000000 then -- the node reserves its vote only for a waiter that had a place in the queue
    redis.call('SET', KEYS[3], first.token, 'PX', '50')
  end
end
