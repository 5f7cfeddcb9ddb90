-- queue.lua: enter the queue.
--
-- fragment: queue(now, entry, inbox)
-- KEYS: lease L · queue Q
-- returns: the place in Q, where 1 is the head · the number of subscribers of inbox, "-" without an
--   inbox
-- idempotent: an entry that exists keeps its ticket.
-- first write: PEXPIRE, or GETEX when Q does not exist yet. A full server accepts both, and the
--   ZADD after them.
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
