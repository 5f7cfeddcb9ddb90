-- acquire_each.lua: grant leases with one fence to several tokens, each lease only if its key is
-- free and has no waiters, and its token has no tombstone. Each lease is for a different call.
--
-- KEYS: for each lease: lease L · queue Q · fence counter C · tombstone X of the token
-- ARGV: for each lease: token · ttl in ms · metadata, may be ""
-- returns: for each lease "server-µs fence", or "" when nothing was done, and acquire.lua must be
--   called; as one string, with a line feed between them
-- idempotent: a second execution finds L taken, and does nothing.
-- first write: SET C, with GET as in acquire.lua. When the server refuses it before a lease was
--   granted, the script ends with its error, and nothing has happened: a full server and a replica
--   refuse the first one. A C that is no text is refused later too, and the script leaves out its
--   lease. The answer "" states nothing about a lease, so it may come from a replica.
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local free, granted, counted, answers = false, {}, {}, {}
for n = 0, #KEYS / 4 - 1 do
  local i = 4 * n + 1
  if n % 4 == 0 then -- look at four leases with one command
    free = redis.call('EXISTS', KEYS[i], KEYS[i + 1], KEYS[i + 3],
      KEYS[i + 4] or KEYS[i], KEYS[i + 5] or KEYS[i], KEYS[i + 7] or KEYS[i],
      KEYS[i + 8] or KEYS[i], KEYS[i + 9] or KEYS[i], KEYS[i + 11] or KEYS[i],
      KEYS[i + 12] or KEYS[i], KEYS[i + 13] or KEYS[i], KEYS[i + 15] or KEYS[i]) == 0
  end
  local lease, counter, fence = KEYS[i], KEYS[i + 2], nil
  if not granted[lease] and (free or redis.call('EXISTS', KEYS[i], KEYS[i + 1], KEYS[i + 3]) == 0) then
    local before = counted[counter] -- a value of C that is not smaller than the clock
    if not before then
      if next(granted) then
        before = redis.pcall('SET', KEYS[i + 2], stamp, 'GET')
      else
        before = redis.call('SET', KEYS[i + 2], stamp, 'GET')
      end
      if not before or type(before) == 'string' and #before == #stamp and before < stamp then
        fence = stamp
      elseif type(before) == 'table' then
        before = nil -- an error, for a counter that is no text
      end
    end
    if before and not fence then
      local ahead = #before == #stamp and tonumber(before)
      fence = ahead and ahead < stamp + 100000 and string.format('%.0f', ahead + 1)
      redis.call('SET', KEYS[i + 2], fence or before)
    end
    if fence then
      redis.call('SET', KEYS[i], ARGV[3 * n + 1] .. ':' .. fence .. ':1:' .. ARGV[3 * n + 3], 'PX', ARGV[3 * n + 2])
      granted[lease], counted[counter] = true, fence
    end
  end
  answers[#answers + 1] = fence and stamp .. ' ' .. fence or ''
end
return table.concat(answers, '\n')
