-- rw_renew.lua: make leases, and readers' parts of them, last longer where they are still their owners'.
--
-- KEYS: for each lease: lease L · queue Q · readers R
-- ARGV: for each lease: token · ttl in ms · the token's entry in R · fence of the phase that it reads in
-- returns: server-µs and, after a space, for each lease in order "1" it is the owner's, "2" it is, and a writer waits, or
--          "0" it is not; as one string, as in "1700000000000000 1120"
-- idempotent: it sets expiries to at least ttl from now, and takes out what is not there the second time. It never shortens
--   an expiry, and never creates a key or an entry. Another phase's L is not the reader's, whatever R says.
-- first write: GETEX, which changes nothing, but makes a replica answer READONLY instead of a false 0. Not for data that
--   is no string, nor anything for a queue that is none: the error would end the renewal of all others.
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
      redis.call('ZREMRANGEBYSCORE', KEYS[3 * i - 1], '-inf', '(0') -- if it was handed over, this is a sign of life
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
    redis.call('PEXPIRE', KEYS[3 * i - 2], math.max(redis.call('PTTL', KEYS[3 * i - 2]), ttl)) -- always: a WAIT speaks of writes only
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. table.concat(answer)
