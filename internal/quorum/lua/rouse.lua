-- rouse.lua: at one node, notify the waiters whose turn it is: all readers, or the writer that has
-- waited longest.
--
-- fragment: hearing(inbox) · say(inbox, message) · rouse(turn)
-- KEYS: lease L · queue Q · wake mark W
-- returns: hearing: how many processes listen, 1 when the number is unknown · say, rouse: nothing
-- idempotent: a second rouse notifies the same waiters again. Each of them asks the node again,
--   which does no harm.
-- first write: ZREM of a waiter that is gone, ZADD of a writer that is notified. The calling script
--   has already made a write that a full server accepts, so the server accepts these writes too.
--
-- An entry of Q is token|inbox|once|mode: once is 1 for a waiter that leaves the queue when the
-- work is done (message "done"), otherwise 0; mode is 1 for a reader, 0 for a writer. The score of
-- an entry is the ticket that the waiter sent with its request. The ticket is the same on all
-- nodes, so all nodes notify the same waiter. W lasts for 50 ms. While W names the writer that was
-- notified, the node gives its vote only to this writer. While W is 'readers', the node lets
-- readers in although a writer waits. After a writer has left (turn is 'readers'), the readers
-- have the turn. The next writer receives a message to ask after these 50 ms, because perhaps no
-- reader has used the turn. Only W reserves the node's vote, so nodes that notify different
-- waiters delay no waiter for long. A writer that is notified loses its place in the queue until
-- it asks again. A process that stands still does not ask again. So a writer of such a process is
-- notified first only once in 10 s, and W is not set for a writer that has lost its place. An
-- inbox is a channel. On a Redis Cluster, it is a sharded channel, whose name begins with
-- latchkit:s:.
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

local function rouse(turn)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local from, writer, next, readers, listens = 0, nil, nil, {}, {}
  repeat
    local page = redis.call('ZRANGE', KEYS[2], from, from + 15, 'WITHSCORES')
    from = from + 16
    for i = 1, #page, 2 do
      local token, inbox, mode = string.match(page[i], '^([^|]+)|([^|]+)|[^|]*|([01])$')
      local known = inbox and listens[inbox]
      if inbox and known == nil then
        listens[inbox] = hearing(inbox) > 0
      end
      if not inbox or not listens[inbox] then
        redis.call('ZREM', KEYS[2], page[i])
        from = from - 1
      elseif mode == '0' and not writer then
        writer = {token = token, inbox = inbox, entry = page[i], ticket = tonumber(page[i + 1])}
      elseif mode == '1' and not readers[inbox] then
        readers[inbox] = true
        readers[#readers + 1] = inbox
      end
      if writer and not next and inbox ~= writer.inbox and listens[inbox] and tonumber(page[i + 1]) < now - 500000 then
        next = {token = token, inbox = inbox}
      end
    end
  until #page < 32 or writer and turn ~= 'readers'
  if writer and (turn ~= 'readers' or not readers[1]) then
    redis.call('ZADD', KEYS[2], 'XX', string.format('%.0f', now + 10000000), writer.entry)
    say(writer.inbox, 'free ' .. KEYS[1])
    if next then -- if the process of the writer does not react, this second process must react
      say(next.inbox, 'head 50 ' .. next.token .. ' ' .. KEYS[1])
    end
    if writer.ticket < now + 5000000 then -- the node reserves its vote only for a writer that had a place in the queue
      redis.call('SET', KEYS[3], writer.token, 'PX', '50')
      return
    end
  elseif writer then
    say(writer.inbox, 'head 50 ' .. writer.token .. ' ' .. KEYS[1])
  end
  if readers[1] then
    redis.call('SET', KEYS[3], 'readers', 'PX', '50')
    for _, inbox in ipairs(readers) do
      say(inbox, 'free ' .. KEYS[1])
    end
  end
end
