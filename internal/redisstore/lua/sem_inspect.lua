-- sem_inspect.lua: return the holder of a key, its permits, and the number of its waiters.
--
-- KEYS: lease L · queue Q · permits P · uses U
-- ARGV: none
-- returns: one string with spaces between its parts: server-µs, PTTL, the number of waiters, the
--   number of permits, the smallest n, for each permit its token, the ms left, the length of its
--   value in U in bytes, and the value, and finally L. L is "" when it is missing. The number of
--   permits is 0 when the permits are unknown, because P or U was evicted. In this state, L shows
--   that the key is held.
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lease = redis.call('GET', KEYS[1])
local uses, members = redis.call('HGETALL', KEYS[4]), redis.call('ZRANGE', KEYS[3], '0', '-1', 'WITHSCORES')
local answer = {
  string.format('%.0f', clock[1] * 1000000 + clock[2]), redis.call('PTTL', KEYS[1]), redis.call('ZCOUNT', KEYS[2], '0', '+inf'),
}
if #uses ~= #members + 2 then -- there is no permit; or P or U was evicted, so the permits are unknown
  answer[4], answer[5] = '0', '0'
else
  local by = {}
  for i = 1, #uses, 2 do
    by[uses[i]] = uses[i + 1]
  end
  answer[4], answer[5] = 0, string.match(by['='] or '0', '^%d+')
  for i = 1, #members, 2 do
    local left, use = tonumber(members[i + 1]) - now, by[members[i]]
    if left > 0 and use then
      answer[4] = answer[4] + 1
      answer[#answer + 1] = members[i]
      answer[#answer + 1] = string.format('%.0f', left)
      answer[#answer + 1] = #use .. ' ' .. use
    end
  end
end
answer[#answer + 1] = lease or ''
return table.concat(answer, ' ')
