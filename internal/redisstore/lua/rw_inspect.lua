-- rw_inspect.lua: return the holder of a lease, its readers, and the number of its waiters.
--
-- KEYS: lease L · queue Q · readers R
-- ARGV: none
-- returns: one string with spaces between its parts: server-µs, PTTL, the number of waiters, the
--   number of readers, for each reader the ms left, the length of its entry in R in bytes, and the
--   entry, and finally L. The reader that runs out first comes first. L is "" when the key is free.
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local lease = redis.call('GET', KEYS[1]) or ''
local answer = {
  string.format('%.0f', clock[1] * 1000000 + clock[2]), redis.call('PTTL', KEYS[1]), redis.call('ZCOUNT', KEYS[2], '0', '+inf'), 0,
}
if string.sub(lease, 1, 7) == 'shared:' then
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local readers = redis.call('ZRANGE', KEYS[3], '0', '-1', 'WITHSCORES')
  for i = 1, #readers, 2 do
    local left = tonumber(readers[i + 1]) - now
    if left > 0 then
      answer[4] = answer[4] + 1
      answer[#answer + 1] = string.format('%.0f', left)
      answer[#answer + 1] = #readers[i] .. ' ' .. readers[i]
    end
  end
end
answer[#answer + 1] = lease
return table.concat(answer, ' ')
