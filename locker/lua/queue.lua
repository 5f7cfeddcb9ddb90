-- queue.lua: wait in line.
--
-- fragment: queue(now, entry, inbox)
-- KEYS: lease L · queue Q
-- returns: the place, 1 is the head · how many listen at inbox, "-" without one
-- idempotent: an entry that is there keeps its ticket.
-- first write: ZADD; somebody holds L, and whoever has found that out has written something that memory cannot refuse.
local function queue(now, entry, inbox)
  local last = redis.call('ZRANGE', KEYS[2], '-1', '-1', 'WITHSCORES')
  local ticket, place = now, 1
  if last[1] then
    ticket = math.max(now, math.abs(tonumber(last[2])) + 1)
  end
  redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', ticket), entry)
  redis.call('PEXPIRE', KEYS[2], '60000')
  if last[1] then
    place = redis.call('ZRANK', KEYS[2], entry) + 1 - redis.call('ZCOUNT', KEYS[2], '-inf', '(0')
    if place < 1 then -- handed to us, lapsed, and taken by a program that keeps no queue: our turn is still the first
      redis.call('ZADD', KEYS[2], '1', entry)
      place = 1
    end
  end
  return place, inbox == '-' and '-' or listeners(inbox)
end
