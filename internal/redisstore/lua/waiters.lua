-- waiters.lua: return the queue.
--
-- KEYS: lease L · queue Q
-- ARGV: none
-- returns: server-µs, then for each entry of Q, in order: its score · the number of subscribers of
--   its inbox, "-" for an entry without an inbox · its length in bytes · the entry; with a space
--   after each, as one string
-- idempotent: it writes nothing.
local clock = redis.call('TIME')
local answer, listening = {string.format('%.0f', clock[1] * 1000000 + clock[2])}, {}
local page = redis.call('ZRANGE', KEYS[2], '0', '-1', 'WITHSCORES')
for i = 1, #page, 2 do
  local inbox = string.match(page[i], '^[^|]*|([^|]*)|') or '-'
  if not listening[inbox] then
    listening[inbox] = inbox == '-' and '-' or listeners(inbox)
  end
  answer[#answer + 1] = string.format('%.0f', page[i + 1]) .. ' ' .. listening[inbox] .. ' ' .. #page[i] .. ' ' .. page[i]
end
return table.concat(answer, ' ') .. ' '
