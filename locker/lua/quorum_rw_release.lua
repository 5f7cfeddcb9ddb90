-- quorum_rw_release.lua: take a vote back from a writer, or leave its readers, or keep it without an owner, or make sure that a late
-- acquire gets none; and tell whoever's turn it is.
--
-- KEYS: lease L · queue Q · wake mark W · tombstone X of the token, or of a phase · done mark D · readers R · intent I of a
--       writer · tombstone of the phase, or again X
-- ARGV: token, "shared" for all readers · keep L this long, in ms, 0: not · tombstone for this long, in ms, 0: none · what it
--       says: "undone", or "revoked:" and a reason · done mark for this long, in ms, 0: none · the token's entry in Q without
--       its mode, which a downgrade may have changed, "" when it is not there to be taken out · "" to tell who
--       waits; or which vote is taken back, telling nobody: the fence that was minted for a writer, or when a reader's part
--       runs out, in ms · the token's entry in R
-- returns: as quorum_release.lua
-- idempotent: a second execution finds the token neither in L nor in R, and changes nothing but the tombstone's expiry.
-- first write: DEL or PEXPIRE when L is the token's, ZREM when it reads, otherwise GETEX of X, which changes nothing: a full
--   server refuses none of them, nor what comes after; a replica answers READONLY instead of a false "not-ours".
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local owner = ARGV[1] .. ':'
local found = redis.call('MGET', KEYS[1], KEYS[7]) -- unlike GET it is not offended by data that is no lock
local lease = found[1]
local keep, mark, done = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local ours = lease and string.sub(lease, 1, #owner) == owner
local phase = lease and string.sub(lease, 1, 7) == 'shared:'
local reads = not ours and phase and tonumber(redis.call('ZSCORE', KEYS[6], ARGV[8]) or '0') > now
if ours and ARGV[7] ~= '' and string.match(lease, '^[^:]*:%d+:%d+:(%d+):') ~= ARGV[7] or
  reads and ARGV[7] ~= '' and tonumber(redis.call('ZSCORE', KEYS[6], ARGV[8])) > tonumber(ARGV[7]) then
  ours, reads = false, false -- a later vote for the same token, which may count
end
local intends = ARGV[7] == '' and string.match(found[2] or '', '^[^|]*') == ARGV[1]
if not ours and not reads then
  local tombstone = redis.call('GETEX', KEYS[4]) or redis.call('GET', KEYS[8])
  local revoked = tombstone and string.sub(tombstone, 1, 8) == 'revoked:'
  if mark > 0 and not revoked then
    redis.call('SET', KEYS[4], ARGV[4], 'PX', mark)
  end
  local left = ARGV[6] ~= '' and redis.call('ZREM', KEYS[2], ARGV[6] .. '0', ARGV[6] .. '1') == 1
  if intends then
    redis.call('DEL', KEYS[7])
  end
  if ARGV[7] == '' and (not lease and left or (not lease or phase) and intends) then
    rouse('readers') -- who goes away now may be the one that was told, or that kept readers out
  end
  if revoked then
    return 'revoked ' .. string.sub(tombstone, 9)
  end
  if done > 0 and redis.call('GET', KEYS[5]) then
    return 'done'
  end
  return 'not-ours'
end

-- What holds data of another type must refuse before the first write: what is half done would be told as not done.
if mark > 0 then
  redis.call('GET', KEYS[4])
end
if done > 0 then
  redis.call('GET', KEYS[5])
end
local waiting = redis.call('ZRANGE', KEYS[2], '0', done > 0 and '-1' or '0')
redis.call('ZCARD', KEYS[6])

local last
if reads then
  redis.call('ZREM', KEYS[6], ARGV[8])
  if keep > 0 then
    redis.call('ZADD', KEYS[6], 'GT', string.format('%.0f', now + keep), 'kept-' .. ARGV[8])
    redis.call('PEXPIRE', KEYS[6], math.max(redis.call('PTTL', KEYS[6]), keep))
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', string.format('%.0f', now))
  last = redis.call('ZRANGE', KEYS[6], '-1', '-1', 'WITHSCORES')[2]
  if last then -- L runs out with the last of those who still read
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', last - now))
  else
    redis.call('DEL', KEYS[1])
  end
elseif keep > 0 then
  redis.call('PEXPIRE', KEYS[1], keep)
else
  redis.call('DEL', KEYS[1], KEYS[6])
end
if mark > 0 then
  redis.call('SET', KEYS[4], ARGV[4], 'PX', mark)
end
if intends then
  redis.call('DEL', KEYS[7])
end
if ARGV[6] ~= '' and waiting[1] then
  redis.call('ZREM', KEYS[2], ARGV[6] .. '0', ARGV[6] .. '1')
end
if done > 0 then
  redis.call('SET', KEYS[5], '1', 'PX', done)
  for _, entry in ipairs(waiting) do
    local token, inbox, once = string.match(entry, '^([^|]+)|([^|]+)|([^|]*)|')
    if once == '1' then
      redis.call('ZREM', KEYS[2], entry)
      say(inbox, 'done ' .. token .. ' ' .. KEYS[1])
    end
  end
end
if ours and keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
elseif waiting[1] and ARGV[7] == '' and not last then
  rouse(not phase and 'readers' or nil)
end
return 'released'
