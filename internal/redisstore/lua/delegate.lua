-- delegate.lua: let a call that presents a secret join a lease.
--
-- KEYS: lease L · joins J
-- ARGV: token of the holder, or of a call that has joined · SHA-256 of the secret, in hexadecimal ·
--   fence of the lease · how many more times the lease may be delegated by calls that join · how
--   long the secret is valid for a first join, in ms
-- returns: "granted" server-µs · "not-ours" server-µs, also for a call that has joined and may not
--   delegate; as one string
-- idempotent: a second execution writes the same values, except for the time.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false "not ours". A full server accepts GETEX, and all writes that follow.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local at = string.format(' %.0f ', clock[1] * 1000000 + clock[2])
local lease = redis.call('GETEX', KEYS[1])
local token, hold = string.match(lease or '', '^([A-Z2-7]+):(%d+):')
if not token or #token ~= 26 then
  return 'not-ours' .. at
end
local depth = tonumber(ARGV[4])
if token ~= ARGV[1] then
  local joined = redis.call('HGET', KEYS[2], 's:' .. ARGV[1])
  local of, _, left = string.match(joined or '', '^(%d+) (%d+) (%d+) ')
  if of ~= hold or tonumber(left) < 1 then
    return 'not-ours' .. at
  end
  depth = math.min(depth, tonumber(left) - 1)
end
redis.call('HSET', KEYS[2], 'd:' .. ARGV[2], string.format('%s %s %d %.0f', hold, ARGV[3], depth, now + tonumber(ARGV[5])))
local life = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[5]))
if redis.call('PTTL', KEYS[2]) < life then
  redis.call('PEXPIRE', KEYS[2], life)
end
return 'granted' .. at
