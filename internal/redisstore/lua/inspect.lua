-- inspect.lua: return the holder of a key, its readers or permits, and the number of its waiters.
--
-- KEYS: lease L · queue Q · [readers R, or permits P · uses U]
-- ARGV: none
-- returns: one string with spaces between its parts: server-µs, PTTL, the number of waiters, the
--   number of readers or permits, the smallest n of the permits or 0, for each reader or permit the
--   ms left, the length of a text in bytes, and the text, and finally L. The text is the reader's
--   entry in R, or token|use of the permit, where use is its value in U. What runs out first comes
--   first. L is "" when it is missing. The number of permits is 0 when the permits are unknown,
--   because P or U was evicted. In this state, L shows that the key is held.
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local waiters, left = redis.call('ZCOUNT', KEYS[2], '0', '+inf'), redis.call('PTTL', KEYS[1])
local lease = redis.call('GET', KEYS[1]) or ''
local members, uses, least = {}, {}, '0'
if KEYS[4] then
  local found = redis.call('HGETALL', KEYS[4])
  for i = 1, #found, 2 do
    uses[found[i]] = found[i + 1]
  end
  members = redis.call('ZRANGE', KEYS[3], '0', '-1', 'WITHSCORES')
  if #found ~= #members + 2 then -- there is no permit; or P or U was evicted, so the permits are unknown
    members = {}
  end
  least = members[1] and string.match(uses['='] or '0', '^%d+') or '0'
elseif KEYS[3] and string.sub(lease, 1, 7) == 'shared:' then
  members = redis.call('ZRANGE', KEYS[3], '0', '-1', 'WITHSCORES')
end
local answer, count = {}, 0
for i = 1, #members, 2 do
  local ms, use = members[i + 1] - now, uses[members[i]]
  if ms > 0 and (use or not KEYS[4]) then
    local text = use and members[i] .. '|' .. use or members[i]
    count = count + 1
    answer[count] = string.format('%.0f ', ms) .. #text .. ' ' .. text .. ' '
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. left .. ' ' .. waiters .. ' ' .. count .. ' ' .. least .. ' ' ..
  table.concat(answer) .. lease
