-- queue.lua: answer a token of which the server knows already, or enter the queue.
--
-- fragment: known(at, token, ttl in ms, lease, tombstone, once) · queue(now, entry, inbox); at is the
--   server's clock between spaces, and once is "1" when the done mark counts, which is the last key
-- KEYS: lease L · queue Q
-- returns: known: the answer to a token that is undone or revoked, whose work is done, or that
--   holds L, otherwise nil · queue: the place in Q, where 1 is the head · the number of subscribers
--   of inbox, "-" without an inbox
-- idempotent: an entry that exists keeps its ticket. A token that holds L confirms it again.
-- first write: in known, ZREMRANGEBYSCORE and PEXPIRE, which may change nothing. In queue, PEXPIRE,
--   or GETEX when Q does not exist yet. A full server accepts them, and the ZADD after them.
local function known(at, token, ttl, lease, tombstone, once)
  if tombstone then
    local reason = string.match(tombstone, '^revoked:(.*)$')
    return reason and 'revoked' .. at .. reason or 'undone' .. at
  elseif once == '1' and redis.call('GET', KEYS[#KEYS]) then
    return 'done' .. at
  end
  local owner = token .. ':'
  if lease and string.sub(lease, 1, #owner) == owner then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(0') -- this acquire confirms a lease that came by hand-off
    -- PEXPIRE is called even when it changes nothing, because WAIT covers only writes.
    redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ttl))
    return 'granted' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
  end
end

local function queue(now, entry, inbox)
  local last = redis.call('ZRANGE', KEYS[2], '-1', '-1', 'WITHSCORES')
  local ticket, place = now, 1
  if last[1] then
    redis.call('PEXPIRE', KEYS[2], '60000')
    ticket = math.max(now, math.abs(tonumber(last[2])) + 1)
  else
    redis.call('GETEX', KEYS[1])
  end
  if redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', ticket), entry) == 0 then
    place = redis.call('ZRANK', KEYS[2], entry) + 1 - redis.call('ZCOUNT', KEYS[2], '-inf', '(0')
    -- The key was handed to this token, the hand-off lapsed, and a program that uses no queue took
    -- the key. The token is still the first waiter.
    if place < 1 then
      redis.call('ZADD', KEYS[2], '1', entry)
      place = 1
    end
  elseif last[1] then
    place = redis.call('ZCOUNT', KEYS[2], '0', '+inf')
  else
    redis.call('PEXPIRE', KEYS[2], '60000')
  end
  return place, inbox == '-' and '-' or listeners(inbox)
end
