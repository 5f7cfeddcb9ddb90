-- grant.lua: write a lease, with the next fence.
--
-- fragment: exhausted(counter) · usable(counter) · mint(now, stamp, counter, fences to reserve) ·
--   grant(now, stamp, counter, token, ttl in ms, fences to reserve, metadata); stamp is the number
--   now as text
-- KEYS: lease L · queue Q · fence counter C
-- returns: exhausted: whether the counter has no larger fence, so that grant refuses · usable:
--   nothing, or an error when C has no larger fence or holds no counter · mint: see below · grant:
--   the new value of L · the first fence · the number of fences; all in digits
-- idempotent: no. The calling script has found L free. Its header describes what a second execution
--   returns.
-- first write: SET C. If the script has not written before, a full server refuses this SET, and
--   then nothing has happened.
local function exhausted(counter)
  -- From 2^53 on, Lua's numbers are not exact, and fences would repeat.
  return (tonumber(counter or '0') or 0) >= 9007199254740991
end

-- mint returns the first fence, the number of reserved fences, and the new value of the counter,
-- all in digits. The first fence is larger than every earlier fence and at least the server's
-- clock. If the block would end more than 100 ms ahead of the clock, only one fence is reserved. So
-- fences grow even after the counter is lost, after 100 ms at most. The format %.0f is needed
-- because Lua's tostring rounds microseconds.
local function mint(now, stamp, counter, wanted)
  local fence, block = now, tonumber(wanted)
  local last = tonumber(counter or '0') or 0
  if last >= now then
    fence = last + 1
    stamp = string.format('%.0f', fence)
  end
  if fence + block - 1 > now + 100000 then
    block, wanted = 1, '1'
  end
  return stamp, wanted, block == 1 and stamp or string.format('%.0f', fence + block - 1)
end

local function usable(counter)
  if not counter then
    redis.call('GET', KEYS[3]) -- MGET returns data that is no counter as missing; GET raises an error for such data
  end
  if exhausted(counter) then
    error('latchkit: the fence counter of this key is at 2^53 or above, so fences would repeat; set the counter to a lower number that is above all fences in use', 0)
  end
end

local function grant(now, stamp, counter, token, ttl, wanted, metadata)
  usable(counter)
  local last
  stamp, wanted, last = mint(now, stamp, counter, wanted)
  local lease = token .. ':' .. stamp .. ':' .. wanted .. ':' .. metadata
  redis.call('SET', KEYS[3], last)
  if not redis.call('SET', KEYS[1], lease, 'PX', ttl, 'NX') then
    redis.call('GET', KEYS[1]) -- raises WRONGTYPE, because the key holds data that is no lock
  end
  return lease, stamp, wanted
end
