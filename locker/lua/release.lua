-- release.lua: give a lease up, keep it without an owner, or make sure that a late acquire takes nothing.
--
-- KEYS: lease L · tombstone X of the token · done mark D
-- ARGV: token · keep L this long, in ms, 0: not · tombstone for this long, in ms, 0: none · done mark for this long, in
--       ms, 0: none
-- returns: "released" server-µs · "not-ours" server-µs · "revoked" server-µs reason; as one string
--          "done" server-µs when it is not ours, but a done mark was asked for and is there
-- idempotent: a second execution finds L without the token and changes nothing but the tombstone's expiry.
-- first write: GETEX, which changes nothing and which memory cannot refuse; on a full server the writes after it pass
--   too. A replica answers READONLY to it instead of a false "not ours".
local clock = redis.call('TIME')
local at = string.format(' %.0f ', clock[1] * 1000000 + clock[2])
local keep, undo, done = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local owner = ARGV[1] .. ':'
local kind = redis.call('TYPE', KEYS[1])['ok']
local lease = (kind == 'string' or kind == 'none') and redis.call('GETEX', KEYS[1])
local ours = lease and string.sub(lease, 1, #owner) == owner
if ours then
  if keep > 0 then
    redis.call('PEXPIRE', KEYS[1], keep)
  else
    redis.call('DEL', KEYS[1])
  end
end

if not ours then
  local tombstone = redis.call('GET', KEYS[2])
  if tombstone and string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked' .. at .. string.sub(tombstone, 9)
  end
end
if undo > 0 then
  redis.call('SET', KEYS[2], 'undone', 'PX', undo)
end
if not ours then
  if done > 0 and redis.call('EXISTS', KEYS[3]) == 1 then
    return 'done' .. at
  end
  return 'not-ours' .. at
end
if done > 0 then
  redis.call('SET', KEYS[3], '1', 'PX', done)
end
if keep > 0 then
  redis.call('SET', KEYS[1], 'kept:' .. string.match(lease, '^[^:]*:(%d+)'), 'PX', keep)
end
return 'released' .. at
