-- release.lua: take back a vote, keep the key without an owner, or make sure that a late acquire
-- gets nothing. Then notify the next waiter.
--
-- KEYS: lease L · queue Q · wake mark W · tombstone X of the token · done mark D · marker N of the
--       node
-- ARGV: token, "kept" for a key without an owner · the token's entry in Q, "" when the entry stays
--       · "" to free L; or several words: for how long to keep L, in ms, or 0 to free it; the TTL
--       of the tombstone, in ms, or 0 for none; the TTL of the done mark, in ms, or 0 for none; the
--       vote to take back (the fence that this node has minted), or 0 for any vote; "1" to notify
--       no waiter, otherwise "0"; the text of N that the client has read if a done mark is asked
--       for, otherwise "-"; the text of the tombstone: "undone", or "revoked:" and a reason
-- returns: "released" · "not-ours" · "revoked" and after a space the reason · "done" when the token
--          has no lease, a done mark is asked for, and the key has a done mark already · "changed"
--          when a done mark is asked for, and N is not the text that the client has read or was
--          written for another server; as one string
-- idempotent: a second execution does not find the token in L, and changes only the tombstone's
--   expiry.
-- first write: DEL or PEXPIRE when the token holds L, otherwise GETEX of X, which changes nothing.
--   A full server accepts these commands and all writes that follow. A replica refuses them with
--   READONLY, and so never answers a false "not-ours".
local owner = ARGV[1] .. ':'
local lease = redis.call('MGET', KEYS[1])[1] -- unlike GET, MGET raises no error for data that is no lock
local ours = lease and string.sub(lease, 1, #owner) == owner
if ours and ARGV[3] == '' and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 'released'
end

-- fragments
local keep, mark, done, only, hush, text, note = 0, 0, 0, '0', '0', '-', ''
if ARGV[3] ~= '' then
  keep, mark, done, only, hush, text, note = string.match(ARGV[3], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  keep, mark, done = tonumber(keep), tonumber(mark), tonumber(done)
end
if done > 0 and (redis.call('GET', KEYS[6]) ~= text or
  not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(text, 1, 40), 1, true)) then
  redis.call('GETEX', KEYS[4])
  return 'changed'
end
if only ~= '0' then -- the token may have got a later vote, which must stay
  ours = ours and only == (string.match(lease, '^[^:]*:%d+:%d+:(%d+):') or string.match(lease, '^kept:(%d+)'))
end
if not ours then
  local tombstone = redis.call('GETEX', KEYS[4])
  local revoked = tombstone and string.sub(tombstone, 1, 8) == 'revoked:'
  if mark > 0 and not revoked then
    redis.call('SET', KEYS[4], note, 'PX', mark)
  end
  local left = ARGV[2] ~= '' and redis.call('ZREM', KEYS[2], ARGV[2]) == 1
  if hush == '0' and not lease and left then
    rouse() -- if the token was notified, another waiter may be next
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
    local token, inbox, once = string.match(entry, '^([^|]+)|([^|]+)|([^|]*)$')
    if once == '1' then
      redis.call('ZREM', KEYS[2], entry)
      say(inbox, 'done ' .. token .. ' ' .. KEYS[1])
    end
  end
end
if keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
elseif waiting[1] and hush == '0' then
  rouse()
end
return 'released'
