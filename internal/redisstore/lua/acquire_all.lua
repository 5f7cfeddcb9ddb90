-- acquire_all.lua: grant a lease to each of several tokens, or to none.
--
-- KEYS: for each lease: lease L · queue Q · fence counter C · tombstone X of the token · done mark
--   D
-- ARGV: for each lease: token · ttl in ms · fences to reserve · "1" when the done mark counts,
--   else "0" · metadata, may be ""
-- returns: for each lease an answer, with its length in bytes and a space before it, as one string.
--   When all leases are granted, each answer is "granted" server-µs PTTL L. Otherwise, a lease that
--   prevents the grant has the answer "busy" server-µs PTTL place "-" L, "undone" server-µs,
--   "revoked" server-µs reason, or "done" server-µs; in "busy", L is "" when the key is free but a
--   token waits. A lease that could have been granted has "not-ours" server-µs. A lease that the
--   token held before has "granted".
-- idempotent: a second execution finds the tokens in their leases, returns the same leases, and at
--   most lengthens their expiries. After an undo of one of the tokens, it finds X and grants no
--   lease.
-- first write: SET C. When a full server refuses it, nothing has happened. When all leases are held
--   already, the first write is PEXPIRE. When one key is busy, the first write is GETEX, which
--   changes nothing. A replica refuses it with READONLY, and so never answers a false "busy".
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = string.format('%.0f', now)
local at = ' ' .. stamp
local count = #KEYS / 5

-- The script reads all keys before it writes to any key. So if a key has data of another type, the
-- script fails before it has changed anything.
local answers, leases, whole = {}, {}, true
for i = 1, count do
  local token, lease = ARGV[5 * i - 4] .. ':', redis.call('GET', KEYS[5 * i - 4])
  local tombstone = redis.call('GET', KEYS[5 * i - 1])
  usable(redis.call('GET', KEYS[5 * i - 2]))
  if tombstone then
    local reason = string.match(tombstone, '^revoked:(.*)$')
    answers[i] = reason and 'revoked' .. at .. ' ' .. reason or 'undone' .. at
  elseif ARGV[5 * i - 1] == '1' and redis.call('GET', KEYS[5 * i]) then
    answers[i] = 'done' .. at
  elseif lease and string.sub(lease, 1, #token) == token then
    leases[i] = lease
  else
    local waiting = redis.call('ZCOUNT', KEYS[5 * i - 3], '-inf', '+inf')
    if lease or waiting > 0 then
      local left = lease and redis.call('PTTL', KEYS[5 * i - 4]) or 0
      answers[i] = 'busy' .. at .. ' ' .. left .. ' ' .. waiting + 1 .. ' - ' .. (lease or '')
    end
  end
  whole = whole and not answers[i]
end

for i = 1, count do
  if leases[i] then
    if redis.call('PTTL', KEYS[5 * i - 4]) < tonumber(ARGV[5 * i - 3]) then
      redis.call('PEXPIRE', KEYS[5 * i - 4], ARGV[5 * i - 3])
    end
    answers[i] = 'granted' .. at .. ' ' .. redis.call('PTTL', KEYS[5 * i - 4]) .. ' ' .. leases[i]
  elseif not whole then
    if answers[i] then
      redis.call('GETEX', KEYS[5 * i - 4])
    else
      answers[i] = 'not-ours' .. at
    end
  else
    -- The counter is read again, because the previous lease may have the same counter.
    local fence, block, last = mint(now, stamp, redis.call('GET', KEYS[5 * i - 2]), ARGV[5 * i - 2])
    local lease = ARGV[5 * i - 4] .. ':' .. fence .. ':' .. block .. ':' .. ARGV[5 * i]
    redis.call('SET', KEYS[5 * i - 2], last)
    redis.call('SET', KEYS[5 * i - 4], lease, 'PX', ARGV[5 * i - 3])
    answers[i] = 'granted' .. at .. ' ' .. ARGV[5 * i - 3] .. ' ' .. lease
  end
end

local reply = ''
for i = 1, count do
  reply = reply .. #answers[i] .. ' ' .. answers[i]
end
return reply
