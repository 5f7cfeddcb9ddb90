-- quorum_rouse.lua: tell whoever's turn it is at one node: all readers who wait, or the writer who has waited longest.
--
-- fragment: rouse(turn)
-- KEYS: lease L · queue Q · wake mark W
-- returns: nothing
-- idempotent: a second one tells the same again, who ask and find out.
-- first write: ZREM of who is gone, or SET W. Whoever calls has written something that memory cannot refuse, so they pass.
--
-- An entry of Q is token|inbox|once|mode. For 50 ms W keeps the node for the writer that was told, or, as 'readers', lets readers
-- in although a writer waits: after a writer (turn is 'readers') it is theirs.
local function rouse(turn)
  local readers, writer, told = {}, nil, {}
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[2], '0', '-1')) do
    local token, inbox, mode = string.match(entry, '^([^|]+)|([^|]+)|[^|]*|([01])$')
    if not token or hearing(inbox) == 0 then
      redis.call('ZREM', KEYS[2], entry)
    elseif mode == '0' then
      writer = writer or {token, inbox}
    elseif not told[inbox] then
      told[inbox] = true
      readers[#readers + 1] = inbox
    end
  end
  if writer and (turn ~= 'readers' or not readers[1]) then
    redis.call('SET', KEYS[3], writer[1], 'PX', '50')
    say(writer[2], 'free ' .. KEYS[1])
  elseif readers[1] then
    redis.call('SET', KEYS[3], 'readers', 'PX', '50')
    for _, inbox in ipairs(readers) do
      say(inbox, 'free ' .. KEYS[1])
    end
  end
end
