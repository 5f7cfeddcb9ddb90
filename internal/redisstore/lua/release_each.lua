-- release_each.lua: release several leases, each lease only if its token holds it and its queue
-- is empty. Each lease is for a different call.
--
-- KEYS: for each lease: lease L · queue Q
-- ARGV: for each lease: token
-- returns: for each lease "released", or "" when nothing was done, and release.lua must be called;
--   as one string, with a line feed between them
-- idempotent: a second execution finds L without the token, and does nothing.
-- first write: DEL, which a full server accepts and a replica refuses. One DEL releases four
--   leases. The answer "" states nothing about a lease, so it may come from a replica.
local found, alone
local over, again, answers = {}, {}, {}
for i, token in ipairs(ARGV) do
  local k, at = 2 * i - 1, (i - 1) % 4 + 1
  local key = KEYS[k]
  if at == 1 then -- look at four leases with two commands
    found = redis.call('MGET', KEYS[k], KEYS[k + 2] or KEYS[k], KEYS[k + 4] or KEYS[k], KEYS[k + 6] or KEYS[k])
    alone = redis.call('EXISTS', KEYS[k + 1], KEYS[k + 3] or KEYS[k + 1], KEYS[k + 5] or KEYS[k + 1], KEYS[k + 7] or KEYS[k + 1]) == 0
  end
  local lease = found[at]
  answers[i] = ''
  if lease and not again[key] and string.find(lease, token .. ':', 1, true) == 1 and (alone or redis.call('EXISTS', KEYS[k + 1]) == 0) then
    over[#over + 1], again[key] = k, true
    answers[i] = 'released'
  end
end
for i = 1, #over, 4 do
  redis.call('DEL', KEYS[over[i]], KEYS[over[i + 1] or over[i]], KEYS[over[i + 2] or over[i]], KEYS[over[i + 3] or over[i]])
end
return table.concat(answers, '\n')
