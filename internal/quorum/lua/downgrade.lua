-- downgrade.lua: turn a writer's vote into the first reader's part of a phase, and notify the
-- waiting readers.
--
-- KEYS: lease L · queue Q · wake mark W · readers R · intent I of a writer, which may still be the
--       token's own · marker N of the node
-- ARGV: text of N that the client has read · token · how long the node keeps the lease, in ms · the
--       token's entry in R · fence of the phase, which is a fence of the writer's block
-- returns: "1" server-µs writers, where writers is "1" when a writer waits · "0" server-µs when the
--          token neither holds L nor is a reader of that phase · "changed" server-µs when N is not
--          the text that the client has read, or was written for another server
-- idempotent: a second execution finds the token among the readers, and at most lengthens its
--   part.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false 0. A full server accepts GETEX, and all writes that follow.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stamp = string.format('%.0f', clock[1] * 1000000 + clock[2])
local owner = ARGV[2] .. ':'
local lease = redis.call('GETEX', KEYS[1])
if redis.call('GET', KEYS[6]) ~= ARGV[1] or
  not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(ARGV[1], 1, 40), 1, true) then
  return 'changed ' .. stamp
elseif not lease then
  return '0 ' .. stamp
end
local ms = math.max(redis.call('PTTL', KEYS[1]), ARGV[3])
if string.sub(lease, 1, #owner) == owner then
  redis.call('ZCARD', KEYS[2])
  redis.call('GET', KEYS[5])
  redis.call('DEL', KEYS[4])
  redis.call('SET', KEYS[1], 'shared:' .. ARGV[5] .. ':1:' .. ARGV[5] .. ':' ..
    (string.match(lease, '^[^:]*:%d+:%d+:%d+:(.*)$') or ''), 'PX', string.format('%.0f', ms))
  redis.call('ZADD', KEYS[4], string.format('%.0f', now + ms), ARGV[4])
  redis.call('PEXPIRE', KEYS[4], string.format('%.0f', ms))
  if string.match(redis.call('GET', KEYS[5]) or '', '^[^|]*') == ARGV[2] then
    redis.call('DEL', KEYS[5])
  end
  rouse('readers')
elseif tonumber(string.match(lease, '^shared:%d+:%d+:(%d+):') or '0') <= tonumber(ARGV[5]) and
  tonumber(redis.call('ZSCORE', KEYS[4], ARGV[4]) or '0') > now then
  redis.call('ZADD', KEYS[4], 'GT', string.format('%.0f', now + ARGV[3]), ARGV[4])
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ms))
  redis.call('PEXPIRE', KEYS[4], string.format('%.0f', math.max(redis.call('PTTL', KEYS[4]), ARGV[3])))
else
  return '0 ' .. stamp
end
return '1 ' .. stamp .. ' ' .. redis.call('EXISTS', KEYS[5])
