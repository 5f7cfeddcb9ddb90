-- quorum_rouse.lua: tell whoever's turn it is at one node: all readers who wait, or the writer who has waited longest.
--
-- fragment: rouse(turn)
-- KEYS: lease L · queue Q · wake mark W
-- returns: nothing
-- idempotent: a second one tells the same again, who ask and find out.
-- first write: ZREM of who is gone, ZADD of a writer who is told. Whoever calls has written something that memory cannot refuse, so they pass.
--
-- An entry of Q is token|inbox|once|mode. For 50 ms W keeps the node for the writer that was told, or, as 'readers', lets readers
-- in although a writer waits: after a writer (turn is 'readers') it is theirs. The writer is told then to ask when their turn
-- is over, which nobody may have used. A writer who was told before and has not asked since holds nobody up.
local function rouse(turn)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local readers, writer, told = {}, nil, {}
  local all = redis.call('ZRANGE', KEYS[2], '0', '-1', 'WITHSCORES')
  for i = 1, #all, 2 do
    local token, inbox, mode = string.match(all[i], '^([^|]+)|([^|]+)|[^|]*|([01])$')
    if not token or hearing(inbox) == 0 then
      redis.call('ZREM', KEYS[2], all[i])
    elseif mode == '0' then
      writer = writer or {token = token, inbox = inbox, entry = all[i], ticket = tonumber(all[i + 1])}
    elseif not told[inbox] then
      told[inbox] = true
      readers[#readers + 1] = inbox
    end
  end
  if writer and (turn ~= 'readers' or not readers[1]) then
    say(writer.inbox, 'free ' .. KEYS[1])
    if called(writer.entry, writer.ticket, now) then
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
