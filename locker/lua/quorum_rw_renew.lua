-- quorum_rw_renew.lua: make votes, and readers' parts, last longer where they are still their owners'.
--
-- KEYS: for each lease: lease L · readers R · intent I of a writer
-- ARGV: for each lease: token · ttl in ms · the token's entry in R · the fence of the quorum's grant
-- returns: server-µs and, after a space, for each lease in order "1" it is the owner's, "2" it is, and a writer waits, or
--          "0" it is not; as one string
-- idempotent: it sets expiries to at least ttl from now. It never shortens one, and never creates a key or an entry. A phase that
--   began here after the quorum's grant has a larger fence, and is not the reader's.
-- first write: GETEX, which changes nothing, but makes a replica answer READONLY instead of a false 0. Not for data that
--   is no string: the error would end the renewal of all others.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answer = {}
for i = 1, #KEYS / 3 do
  local owner, ttl = ARGV[4 * i - 3] .. ':', tonumber(ARGV[4 * i - 2])
  local kind = redis.call('TYPE', KEYS[3 * i - 2])['ok']
  local lease = (kind == 'string' or kind == 'none') and redis.call('GETEX', KEYS[3 * i - 2]) or ''
  local phase = tonumber(string.match(lease, '^shared:%d+:%d+:(%d+):') or '')
  answer[i] = '0'
  if string.sub(lease, 1, #owner) == owner then
    answer[i] = '1'
  elseif phase and phase <= tonumber(ARGV[4 * i]) and redis.call('TYPE', KEYS[3 * i - 1])['ok'] == 'zset' then
    local ends = tonumber(redis.call('ZSCORE', KEYS[3 * i - 1], ARGV[4 * i - 1]) or '0')
    if ends > now then
      redis.call('ZADD', KEYS[3 * i - 1], string.format('%.0f', math.max(ends, now + ttl)), ARGV[4 * i - 1])
      redis.call('PEXPIRE', KEYS[3 * i - 1], math.max(redis.call('PTTL', KEYS[3 * i - 1]), ttl))
      answer[i] = redis.call('EXISTS', KEYS[3 * i]) == 1 and '2' or '1'
    end
  end
  if answer[i] ~= '0' then
    redis.call('PEXPIRE', KEYS[3 * i - 2], math.max(redis.call('PTTL', KEYS[3 * i - 2]), ttl))
  end
end
return string.format('%.0f ', clock[1] * 1000000 + clock[2]) .. table.concat(answer)
