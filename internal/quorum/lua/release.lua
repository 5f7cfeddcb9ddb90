-- release.lua: take back a vote, keep the key without an owner, or make sure that a late acquire
-- gets nothing.
--
-- KEYS: lease L · tombstone X of the token · [done mark D, when one is asked for]
-- ARGV: token, "kept" for a key without an owner · [for how long to keep L, in ms, or 0 to free it ·
--       the TTL of the tombstone, in ms, or 0 for none · the TTL of the done mark, in ms, or 0 for
--       none · the vote to take back (the fence that this node has minted), or 0 for any vote · the
--       text of the tombstone: "undone", or "revoked:" and a reason]
-- returns: "released" · "not-ours" · "revoked" and after a space the reason · "done" when the token
--          has no lease, a done mark is asked for, and the key has a done mark already; as one
--          string
-- idempotent: a second execution does not find the token in L, and changes only the tombstone's
--   expiry.
-- first write: DEL or PEXPIRE when the token holds L, otherwise GETEX of X, which changes nothing.
--   A full server accepts these commands and all writes that follow. A replica refuses them with
--   READONLY, and so never answers a false "not-ours".
local owner = ARGV[1] .. ':'
local lease = redis.call('MGET', KEYS[1])[1] -- unlike GET, MGET raises no error for data that is no lock
local ours = lease and string.sub(lease, 1, #owner) == owner
if ours and not ARGV[2] then
  redis.call('DEL', KEYS[1])
  return 'released'
end

local keep, mark, done = tonumber(ARGV[2] or '0'), tonumber(ARGV[3] or '0'), tonumber(ARGV[4] or '0')
if (ARGV[5] or '0') ~= '0' then -- the token may have got a later vote, which must stay
  ours = ours and ARGV[5] == (string.match(lease, '^[^:]*:%d+:%d+:(%d+):') or string.match(lease, '^kept:(%d+)'))
end
if not ours then
  local tombstone = redis.call('GETEX', KEYS[2])
  if tombstone and string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked ' .. string.sub(tombstone, 9)
  end
  if mark > 0 then
    redis.call('SET', KEYS[2], ARGV[6], 'PX', mark)
  end
  return done > 0 and redis.call('GET', KEYS[3]) and 'done' or 'not-ours'
end

-- If a key has data of another type, the script must fail before its first write, because an error
-- reply counts as proof that the release had no effect.
if mark > 0 then
  redis.call('GET', KEYS[2])
end
if done > 0 then
  redis.call('GET', KEYS[3])
end
if keep > 0 then
  redis.call('PEXPIRE', KEYS[1], keep)
else
  redis.call('DEL', KEYS[1])
end
if mark > 0 then
  redis.call('SET', KEYS[2], ARGV[6], 'PX', mark)
end
if done > 0 then
  redis.call('SET', KEYS[3], '1', 'PX', done)
end
if keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
end
return 'released'
