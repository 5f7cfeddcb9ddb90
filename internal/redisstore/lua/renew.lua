-- renew.lua: lengthen leases that their owners still hold.
--
-- KEYS: leases L1 … Ln
-- ARGV: for each lease: token · ttl in ms
-- returns: server-µs and, after a space, "1" or "0" for each lease in order: 1 the owner holds it,
--   0 the owner does not; as one string, as in "1700000000000000 1101"
-- idempotent: it sets expiries to at least ttl from now. It never creates a key. It never shortens
--   an expiry, because a late renewal must not undo an extension.
-- first write: PEXPIRE of a lease that its owner holds, otherwise GETEX, which changes nothing. A
--   replica refuses both with READONLY, and so never answers a false 0. Data that is no string gets
--   no GETEX, because the error would end all other renewals.
local clock = redis.call('TIME')
local answer, leases, last = {}, nil, #KEYS - #KEYS % 8
local text, ttl -- kept for the next lease: converting a text takes as long as a command
for i = 1, #KEYS do
  -- MGET raises no error for data of another type. One MGET reads eight leases.
  local place = (i - 1) % 8 + 1
  if i > last then
    place, leases = 1, redis.call('MGET', KEYS[i])
  elseif place == 1 then
    leases = redis.call('MGET', KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4], KEYS[i + 5], KEYS[i + 6], KEYS[i + 7])
  end
  local lease = leases[place]
  if lease and string.find(lease, ARGV[2 * i - 1] .. ':', 1, true) == 1 then
    if ARGV[2 * i] ~= text then
      text = ARGV[2 * i]
      ttl = tonumber(text)
    end
    local left = redis.call('PTTL', KEYS[i])
    -- PEXPIRE is called even when it changes nothing, because WAIT covers only writes.
    redis.call('PEXPIRE', KEYS[i], left > ttl and left or text)
    answer[i] = '1'
  else
    if lease or redis.call('TYPE', KEYS[i])['ok'] == 'none' then
      redis.call('GETEX', KEYS[i])
    end
    answer[i] = '0'
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. table.concat(answer)
