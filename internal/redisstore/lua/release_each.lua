-- release_each.lua: release several leases, each lease only if its token holds it and its queue
-- is empty. Each lease is for a different call.
--
-- KEYS: for each lease: lease L · queue Q
-- ARGV: for each lease: token
-- returns: for each lease "released", or "" when nothing was done, and release.lua must be called;
--   as one string, with a line feed between them
-- idempotent: a second execution finds L without the token, and does nothing.
-- first write: DEL, which a full server accepts and a replica refuses. One DEL releases all leases.
--   The answer "" states nothing about a lease, so it may come from a replica.
local queues = {}
for i = 1, #ARGV do
  queues[i] = KEYS[2 * i]
end
local found, alone = redis.call('MGET', unpack(KEYS)), redis.call('EXISTS', unpack(queues)) == 0

local over, again, answers = {}, {}, {}
for i, token in ipairs(ARGV) do
  local owner, key, lease = token .. ':', KEYS[2 * i - 1], found[2 * i - 1]
  if lease and not again[key] and string.sub(lease, 1, #owner) == owner and (alone or redis.call('EXISTS', KEYS[2 * i]) == 0) then
    over[#over + 1], again[key] = key, true
    answers[i] = 'released'
  else
    answers[i] = ''
  end
end
if over[1] then
  redis.call('DEL', unpack(over))
end
return table.concat(answers, '\n')
