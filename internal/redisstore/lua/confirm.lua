-- confirm.lua: renew leases that came by hand-off, as renew.lua does. A renewal shows that the
-- owner lives, so the script also removes the owner's entry from the queue.
--
-- KEYS: for each lease: lease L · queue Q
-- ARGV: for each lease: token · ttl in ms
-- returns: server-µs and, after a space, "1" or "0" for each lease in order: 1 the owner holds it,
--   0 the owner does not; as one string, as in "1700000000000000 1101"
-- idempotent: it sets expiries to at least ttl from now, and removes entries. A second execution
--   finds these entries removed. It never shortens an expiry, and never creates a key.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. Data that is no string gets no GETEX, and a queue of another type gets no
--   command, because the error would end all other renewals.
local clock = redis.call('TIME')
local answer = {}
for i = 1, #KEYS / 2 do
  local owner = ARGV[2 * i - 1] .. ':'
  local kind = redis.call('TYPE', KEYS[2 * i - 1])['ok']
  local lease = (kind == 'string' or kind == 'none') and redis.call('GETEX', KEYS[2 * i - 1])
  if lease and string.sub(lease, 1, #owner) == owner then
    -- PEXPIRE is called even when it changes nothing, because WAIT covers only writes.
    redis.call('PEXPIRE', KEYS[2 * i - 1], math.max(redis.call('PTTL', KEYS[2 * i - 1]), ARGV[2 * i]))
    if redis.call('TYPE', KEYS[2 * i])['ok'] == 'zset' then
      redis.call('ZREMRANGEBYSCORE', KEYS[2 * i], '-inf', '(0')
    end
    answer[i] = '1'
  else
    answer[i] = '0'
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. table.concat(answer)
