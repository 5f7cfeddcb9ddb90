-- once.lua: remove the waiters for work that is done, and notify them.
--
-- fragment: finished()
-- KEYS: lease L · queue Q
-- returns: nothing
-- idempotent: a removed entry is not removed again.
-- first write: ZREM, which a full server accepts.
local function finished()
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[2], '0', '-1')) do
    local token, inbox, once = string.match(entry, '^([^|]*)|([^|]*)|[^|]*|[^|]*|[^|]*|([^|]*)|')
    if once == '1' then
      redis.call('ZREM', KEYS[2], entry)
      if inbox ~= '-' then
        notify(inbox, 'done ' .. token .. ' ' .. KEYS[1])
      end
    end
  end
end
