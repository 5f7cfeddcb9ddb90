-- release.lua: take back a writer's vote or a reader's part, keep the key without an owner, or
-- make sure that a late acquire gets nothing. Then notify the waiters whose turn it is.
--
-- KEYS: lease L · queue Q · wake mark W · tombstone X of the token, or of a phase · done mark D ·
--       readers R · intent I of a writer · tombstone of the phase, or again X · marker N of the
--       node
-- ARGV: token, "shared" for all readers, "kept" for a key without an owner · the token's entry in Q
--       without its mode, which a downgrade may have changed, "" when the entry stays · the token's
--       entry in R, "" where no reader is possible · "" to free L; or several words: for how long
--       to keep L, in ms, or 0 to free it; the TTL of the tombstone, in ms, or 0 for none; the TTL
--       of the done mark, in ms, or 0 for none; the vote to take back (the fence that this node has
--       minted for a writer or for a phase, or the time in ms when a reader's part runs out), or 0
--       for any vote; "1" to notify no waiter, otherwise "0"; the text of N that the client has
--       read if a done mark is asked for, otherwise "-"; the text of the tombstone: "undone", or
--       "revoked:" and a reason
-- returns: "released" · "not-ours" · "revoked" and after a space the reason · "done" when the token
--          has no lease, a done mark is asked for, and the key has a done mark already · "changed"
--          when a done mark is asked for, and N is not the text that the client has read or was
--          written for another server; as one string
-- idempotent: a second execution finds the token neither in L nor in R, and changes only the
--   tombstone's expiry.
-- first write: DEL or PEXPIRE when the token holds L, ZREM when the token is a reader, otherwise
--   GETEX of X, which changes nothing. A full server accepts these commands and all writes that
--   follow. A replica refuses them with READONLY, and so never answers a false "not-ours".
local owner = ARGV[1] .. ':'
local found = redis.call('MGET', KEYS[1], KEYS[7]) -- unlike GET, MGET raises no error for data that is no lock
local lease = found[1]
local ours = lease and string.sub(lease, 1, #owner) == owner
if ours and ARGV[4] == '' and not found[2] and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1], KEYS[6])
  return 'released'
end

-- fragments
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local keep, mark, done, only, hush, text, note = 0, 0, 0, '0', '0', '-', ''
if ARGV[4] ~= '' then
  keep, mark, done, only, hush, text, note = string.match(ARGV[4], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  keep, mark, done = tonumber(keep), tonumber(mark), tonumber(done)
end
if done > 0 and (redis.call('GET', KEYS[9]) ~= text or
  not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(text, 1, 40), 1, true)) then
  redis.call('GETEX', KEYS[4])
  return 'changed'
end
local phase = lease and string.sub(lease, 1, 7) == 'shared:'
local ends = not ours and phase and ARGV[3] ~= '' and tonumber(redis.call('ZSCORE', KEYS[6], ARGV[3]) or '0')
local reads = ends and ends > now
if only ~= '0' then -- the token may have got a later vote, which must stay
  ours = ours and only == (string.match(lease, '^[^:]*:%d+:%d+:(%d+):') or string.match(lease, '^kept:(%d+)'))
  reads = reads and ends <= tonumber(only)
end
local intends = hush == '0' and string.match(found[2] or '', '^[^|]*') == ARGV[1]
local turn = ARGV[3] ~= '' and 'readers' or nil
if not ours and not reads then
  local tombstone = redis.call('GETEX', KEYS[4]) or redis.call('GET', KEYS[8])
  local revoked = tombstone and string.sub(tombstone, 1, 8) == 'revoked:'
  if mark > 0 and not revoked then
    redis.call('SET', KEYS[4], note, 'PX', mark)
  end
  local left = ARGV[2] ~= '' and redis.call('ZREM', KEYS[2], ARGV[2] .. '0', ARGV[2] .. '1') == 1
  if intends then
    redis.call('DEL', KEYS[7])
  end
  if hush == '0' and (not lease and left or (not lease or phase) and intends) then
    rouse(turn) -- if the token was notified or kept readers out, other waiters may be next
  end
  if revoked then
    return 'revoked ' .. string.sub(tombstone, 9)
  end
  if done > 0 and redis.call('GET', KEYS[5]) then
    return 'done'
  end
  return 'not-ours'
end

-- If a key has data of another type, the script must fail before its first write, because an error
-- reply counts as proof that the release had no effect.
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
  redis.call('ZREM', KEYS[6], ARGV[3])
  if keep > 0 then
    redis.call('ZADD', KEYS[6], 'GT', string.format('%.0f', now + keep), 'kept-' .. ARGV[3])
    redis.call('PEXPIRE', KEYS[6], math.max(redis.call('PTTL', KEYS[6]), keep))
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', string.format('%.0f', now))
  last = redis.call('ZRANGE', KEYS[6], '-1', '-1', 'WITHSCORES')[2]
  if last then -- L must run out together with the last reader that is left
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
  redis.call('SET', KEYS[4], note, 'PX', mark)
end
if intends then
  redis.call('DEL', KEYS[7])
end
if ARGV[2] ~= '' and waiting[1] then
  redis.call('ZREM', KEYS[2], ARGV[2] .. '0', ARGV[2] .. '1')
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
elseif waiting[1] and hush == '0' and not last then
  rouse(not phase and turn or nil)
end
return 'released'
