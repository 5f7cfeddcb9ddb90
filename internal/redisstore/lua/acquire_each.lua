-- acquire_each.lua: grant leases to several tokens, each lease only if its key is free and has
-- no waiters, and its token has no tombstone. Each lease is for a different call.
--
-- KEYS: for each lease: lease L · queue Q · fence counter C · tombstone X of the token
-- ARGV: for each lease: token · ttl in ms · fences to reserve · metadata, may be ""
-- returns: for each lease "server-µs fence", or "" when nothing was done, and acquire.lua must be
--   called; as one string, with a line feed between them
-- idempotent: a second execution finds L taken, and does nothing.
-- first write: SET C. When a full server refuses it, nothing has happened. A replica refuses it
--   too. The answer "" states nothing about a lease, so it may come from a replica.
local clock = redis.call('TIME')
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local marks, counters = {}, {}
for i = 1, #KEYS / 4 do
  marks[3 * i - 2], marks[3 * i - 1], marks[3 * i] = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i]
  counters[i] = KEYS[4 * i - 1]
end
local free, found = redis.call('EXISTS', unpack(marks)) == 0, redis.call('MGET', unpack(counters))
for i = 1, #counters do
  if not found[i] then
    -- MGET returns data that is no counter as missing. GET raises an error for such data before
    -- anything has changed.
    redis.call('GET', KEYS[4 * i - 1])
  end
end

local block, reserved -- kept for the next lease, because formatting a number takes as long as a command
local granted, counted, answers = {}, {}, {}
for i, counter in ipairs(counters) do
  local lease, wanted, fence = KEYS[4 * i - 3], ARGV[4 * i - 1], nil
  if not granted[lease] and (free or redis.call('EXISTS', KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i]) == 0) then
    local last = counted[counter] or found[i]
    if not last or #last == #stamp and last < stamp then
      if wanted ~= block then
        local micros = clock[2] + wanted - 1 -- the last fence of the block
        block, reserved = wanted, micros < 1000000 and #wanted < 6 and clock[1] .. string.format('%06d', micros)
      end
      if reserved then
        fence, last = stamp, reserved
      end
    elseif #last == #stamp and string.find(last, '^%d+$') and last + wanted <= stamp + 100000 then -- as in acquire.lua
      fence, last = string.format('%.0f', last + 1), string.format('%.0f', last + wanted)
    end
    if fence then
      local text = ARGV[4 * i - 3] .. ':' .. fence .. ':' .. wanted
      if ARGV[4 * i] ~= '' then
        text = text .. ':' .. ARGV[4 * i]
      end
      redis.call('SET', KEYS[4 * i - 1], last)
      redis.call('SET', KEYS[4 * i - 3], text, 'PX', ARGV[4 * i - 2])
      granted[lease], counted[counter] = true, last
    end
  end
  answers[i] = fence and stamp .. ' ' .. fence or ''
end
return table.concat(answers, '\n')
