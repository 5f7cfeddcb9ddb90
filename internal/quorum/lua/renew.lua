-- renew.lua: lengthen each vote, or reader's part of a phase, that still belongs to its owner.
--
-- KEYS: for each lease: lease L · readers R · intent I of a writer; then marker N of the node
-- ARGV: for each lease: token · how long the node keeps the lease, in ms · the token's entry in R
--       · the fence of the quorum's grant; then text of N that the client has read
-- returns: "changed" server-µs when N is not the text that the client has read, or was written for
--          another server. Otherwise server-µs and, after a space, for each lease in order: "1"
--          when the owner has the lease, "2" when the owner has the lease and a writer waits, "0"
--          when the owner does not have the lease; as one string
-- idempotent: each execution sets expiries to at least the given time from now. It never shortens
--   an expiry, and never creates a key or an entry. A phase that began here after the quorum's
--   grant has a larger fence, so the reader does not belong to it.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. A key whose data is no string gets no GETEX, because the error of GETEX
--   would end the renewals of all leases.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stamp = string.format('%.0f', clock[1] * 1000000 + clock[2])
if redis.call('GET', KEYS[#KEYS]) ~= ARGV[#ARGV] or
  not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(ARGV[#ARGV], 1, 40), 1, true) then
  return 'changed ' .. stamp
end
local answer = {}
for i = 1, (#KEYS - 1) / 3 do
  local k, a = 3 * i - 2, 4 * i - 3
  local owner, ttl = ARGV[a] .. ':', tonumber(ARGV[a + 1])
  local kind = redis.call('TYPE', KEYS[k])['ok']
  local lease = (kind == 'string' or kind == 'none') and redis.call('GETEX', KEYS[k]) or ''
  local phase = tonumber(string.match(lease, '^shared:%d+:%d+:(%d+):') or '')
  answer[i] = '0'
  if string.sub(lease, 1, #owner) == owner then
    answer[i] = '1'
  elseif phase and phase <= tonumber(ARGV[a + 3]) and redis.call('TYPE', KEYS[k + 1])['ok'] == 'zset' then
    local ends = tonumber(redis.call('ZSCORE', KEYS[k + 1], ARGV[a + 2]) or '0')
    if ends > now then
      redis.call('ZADD', KEYS[k + 1], string.format('%.0f', math.max(ends, now + ttl)), ARGV[a + 2])
      redis.call('PEXPIRE', KEYS[k + 1], math.max(redis.call('PTTL', KEYS[k + 1]), ttl))
      answer[i] = redis.call('EXISTS', KEYS[k + 2]) == 1 and '2' or '1'
    end
  end
  if answer[i] ~= '0' then
    redis.call('PEXPIRE', KEYS[k], math.max(redis.call('PTTL', KEYS[k]), ttl))
  end
end
return stamp .. ' ' .. table.concat(answer)
