-- quorum_release.lua: take a vote back from a token, or keep it without an owner, or make sure that a late acquire gets none; and wake
-- whoever waits for it.
--
-- KEYS: lease L · queue Q · wake mark W · tombstone X of the token · done mark D
-- ARGV: token · its entry in Q, "" when it is not there to be taken out · "" to free L and wake who waits; or more, in words: keep L
--       this long, in ms, 0: not; tombstone for this long, in ms, 0: none; done mark for this long, in ms, 0: none; which vote is
--       taken back, by the fence that this node has minted for it, waking nobody, 0: whichever it is; what the tombstone says:
--       "undone", or "revoked:" and a reason
-- returns: "released" · "not-ours" · "revoked" and after a space the reason · "done" when it is not ours, but a done mark was
--          asked for and is there; as one string
-- idempotent: a second execution finds L without the token, and changes nothing but the tombstone's expiry.
-- first write: DEL or PEXPIRE when L is the token's, otherwise GETEX of X, which changes nothing: a full server refuses none
--   of them, nor what comes after; a replica answers READONLY instead of a false "not-ours".
local owner = ARGV[1] .. ':'
local lease = redis.call('MGET', KEYS[1])[1] -- unlike GET it is not offended by data that is no lock
local keep, mark, done, vote, note = 0, 0, 0, '0', ''
if ARGV[3] ~= '' then -- few ask for more, and each argument has its price
  keep, mark, done, vote, note = string.match(ARGV[3], '^(%S+) (%S+) (%S+) (%S+) (.*)$')
  keep, mark, done = tonumber(keep), tonumber(mark), tonumber(done)
end
local ours = lease and string.sub(lease, 1, #owner) == owner
if ours and vote ~= '0' and string.match(lease, '^[^:]*:%d+:%d+:(%d+):') ~= vote then
  ours = false -- a later vote for the same token, which may count
end
if not ours then
  local tombstone = redis.call('GETEX', KEYS[4])
  local revoked = tombstone and string.sub(tombstone, 1, 8) == 'revoked:'
  if mark > 0 and not revoked then
    redis.call('SET', KEYS[4], note, 'PX', mark)
  end
  if ARGV[2] ~= '' and redis.call('ZREM', KEYS[2], ARGV[2]) == 1 and not lease and vote == '0' then
    wake() -- who goes away now may be the one that was woken
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

if keep > 0 then
  redis.call('PEXPIRE', KEYS[1], keep)
else
  redis.call('DEL', KEYS[1])
end
if mark > 0 then
  redis.call('SET', KEYS[4], note, 'PX', mark)
end
if ARGV[2] ~= '' and waiting[1] then
  redis.call('ZREM', KEYS[2], ARGV[2])
end
if done > 0 then
  redis.call('SET', KEYS[5], '1', 'PX', done)
  for _, entry in ipairs(waiting) do
    local token, inbox, once = string.match(entry, '^([^|]+)|([^|]+)|(.*)$')
    if once == '1' then
      redis.call('ZREM', KEYS[2], entry)
      say(inbox, 'done ' .. token .. ' ' .. KEYS[1])
    end
  end
end
if keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
elseif waiting[1] and vote == '0' then
  wake()
end
return 'released'
