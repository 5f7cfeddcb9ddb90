-- join.lua: join a lease that was delegated, or check whether a joined lease is still held.
--
-- KEYS: lease L · joins J
-- ARGV: token of the join · SHA-256 of the secret, in hexadecimal, "" for a call that has another
--   proof of the delegation · ttl of the join in ms · for a call without a secret: first fence of
--   the holder · fence of the lease · how many more times the lease may be delegated
-- returns: "granted" server-µs PTTL-of-L fence · "not-ours" server-µs; as one string
-- idempotent: J has an entry for a token that has joined, so the token does not need its secret
--   again.
-- first write: GETEX, which changes nothing. A replica refuses it with READONLY, and so never
--   answers a false "not ours". A full server accepts GETEX, and all writes that follow.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local at = string.format(' %.0f ', clock[1] * 1000000 + clock[2])
local lease = redis.call('GETEX', KEYS[1])
local owner, hold = string.match(lease or '', '^([A-Z2-7]+):(%d+):')
-- If L is kept without an owner, or shared, its first word does not have the length of a token.
if not owner or #owner ~= 26 then
  return 'not-ours' .. at
end
local function good(entry)
  local of, fence, depth, ends = string.match(entry or '', '^(%d+) (%d+) (%d+) (%d+)$')
  if of == hold and tonumber(ends) > now then
    return fence, depth
  end
end

local name = 's:' .. ARGV[1]
local of, fence, depth = string.match(redis.call('HGET', KEYS[2], name) or '', '^(%d+) (%d+) (%d+) ')
if of ~= hold then
  if ARGV[2] ~= '' then
    fence, depth = good(redis.call('HGET', KEYS[2], 'd:' .. ARGV[2]))
  elseif ARGV[4] == hold then
    fence, depth = ARGV[5], ARGV[6]
  else
    fence = nil
  end
  if not fence then
    return 'not-ours' .. at
  end
  if redis.call('HLEN', KEYS[2]) > 64 then -- too many entries: dead callers and old secrets leave entries behind
    local all = redis.call('HGETALL', KEYS[2])
    for i = 1, #all, 2 do
      if not good(all[i + 1]) then
        redis.call('HDEL', KEYS[2], all[i])
      end
    end
  end
end
redis.call('HSET', KEYS[2], name, string.format('%s %s %s %.0f', hold, fence, depth, now + tonumber(ARGV[3])))
local left = redis.call('PTTL', KEYS[1])
if redis.call('PTTL', KEYS[2]) < left then
  redis.call('PEXPIRE', KEYS[2], left)
end
return 'granted' .. at .. left .. ' ' .. fence
