-- once.lua: send those away who wait for work that is done now.
--
-- fragment: finished()
-- KEYS: lease L · queue Q
-- returns: nothing
-- idempotent: whoever has left does not leave again.
-- first write: ZREM, which no full server refuses.
local function finished()
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[2], '0', '-1')) do
    local token, inbox, once = string.match(entry, '^([^|]*)|([^|]*)|[^|]*|[^|]*|[^|]*|([^|]*)|')
    if once == '1' then
      redis.call('ZREM', KEYS[2], entry)
      if inbox ~= '-' then
        publish(inbox, 'done ' .. token .. ' ' .. KEYS[1])
      end
    end
  end
end
