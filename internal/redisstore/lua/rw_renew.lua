-- rw_renew.lua: lengthen leases, and readers' parts of shared leases, that their owners still hold.
--
-- KEYS: for each lease: lease L · queue Q · readers R
-- ARGV: for each lease: token · ttl in ms · the token's entry in R · fence of the token's phase
-- returns: server-µs and, after a space, for each lease in order "1" when the owner holds it, "2"
--   when the owner holds it and a writer waits, "0" when the owner does not hold it; as one
--   string, as in "1700000000000000 1120"
-- idempotent: it sets expiries to at least ttl from now, and removes entries. A second execution
--   finds these entries removed. It never shortens an expiry, and never creates a key or an entry.
--   A reader does not hold L of another phase, even if R has an entry for the reader.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. Data that is no string gets no GETEX, and a queue of another type gets no
--   command, because the error would end all other renewals.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answer = {}
for i = 1, #KEYS / 3 do
  local owner, phase = ARGV[4 * i - 3] .. ':', 'shared:' .. ARGV[4 * i] .. ':'
  local ttl = tonumber(ARGV[4 * i - 2])
  local kind = redis.call('TYPE', KEYS[3 * i - 2])['ok']
  local lease = (kind == 'string' or kind == 'none') and redis.call('GETEX', KEYS[3 * i - 2])
  local queue = lease and redis.call('TYPE', KEYS[3 * i - 1])['ok'] == 'zset'
  answer[i] = '0'
  if lease and string.sub(lease, 1, #owner) == owner then
    if queue then
      redis.call('ZREMRANGEBYSCORE', KEYS[3 * i - 1], '-inf', '(0') -- this renewal confirms a lease that came by hand-off
    end
    answer[i] = '1'
  elseif lease and string.sub(lease, 1, #phase) == phase and redis.call('TYPE', KEYS[3 * i])['ok'] == 'zset' then
    local ends = tonumber(redis.call('ZSCORE', KEYS[3 * i], ARGV[4 * i - 1]) or '0')
    if ends > now then
      if ends < now + ttl then
        redis.call('ZADD', KEYS[3 * i], string.format('%.0f', now + ttl), ARGV[4 * i - 1])
      end
      redis.call('PEXPIRE', KEYS[3 * i], math.max(redis.call('PTTL', KEYS[3 * i]), ttl))
      answer[i] = queue and '2' or '1'
    end
  end
  if answer[i] ~= '0' then
    -- PEXPIRE is called even when it changes nothing, because WAIT covers only writes.
    redis.call('PEXPIRE', KEYS[3 * i - 2], math.max(redis.call('PTTL', KEYS[3 * i - 2]), ttl))
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. table.concat(answer)
