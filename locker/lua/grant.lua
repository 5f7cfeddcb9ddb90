-- grant.lua: write a lease, with the next fence.
--
-- fragment: grant(now, counter, token, ttl in ms, fences to reserve, metadata)
-- KEYS: lease L · queue Q · fence counter C
-- returns: what lies in L now · the first fence · how many
-- idempotent: no; only for who has seen that L is free, and says how a second execution comes out.
-- first write: SET C, which a full server refuses unless something was written before; then nothing has happened.
local function grant(now, counter, token, ttl, wanted, metadata)
  if not counter then
    redis.call('GET', KEYS[3]) -- MGET says the same of data that is no counter; this refuses it
  end
  -- The fence: larger than every one before, and at least the server's clock, so that it grows even after the counter is
  -- lost. A block may run ahead of the clock by 100 ms only; %.0f because Lua's tostring rounds microseconds.
  local fence = math.max((tonumber(counter or '0') or 0) + 1, now)
  local block = tonumber(wanted)
  if fence + block - 1 > now + 100000 then
    block = 1
  end
  local lease = string.format('%s:%.0f:%.0f', token, fence, block)
  if metadata ~= '' then
    lease = lease .. ':' .. metadata
  end
  redis.call('SET', KEYS[3], string.format('%.0f', fence + block - 1))
  if not redis.call('SET', KEYS[1], lease, 'PX', ttl, 'NX') then
    redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
  end
  return lease, fence, block
end
