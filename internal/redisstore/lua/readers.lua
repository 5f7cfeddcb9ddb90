-- readers.lua: the phases of readers. While readers hold the key, L is shared:fence:1[:metadata],
-- and R has an entry token|inbox for each reader, with the time in ms at which the reader's part
-- runs out. L runs out with the last reader, so L alone shows whether there is a phase.
--
-- fragment: enter(now, member, ms) · remember(now) · blocked() · admit(now, stamp, lease, own) ·
--   announce() · serve(now, stamp, counter, own, turn, by), where by is the text after the token in
--   a message, as releaser in hand.lua makes it, nil: no text
-- KEYS: lease L · queue Q · fence counter C · readers R
-- returns: blocked: whether a live writer waits · serve: the new value of L and its TTL in ms, or
--   nil when L stays free, because Q has no live waiter, or C has no larger fence, or own is a
--   writer whose turn it is; own then has left Q · the others: nothing
-- idempotent: a second enter only lengthens, and a second remember finds R and changes nothing. A
--   script may use the other functions only if its second execution does not reach them. The script
--   has checked the types of all keys, because nothing here may fail half-way.
-- first write: ZADD in enter and remember. When a full server refuses it, nothing has happened. A
--   script that uses the other functions has already made a write that a full server accepts.
--
-- Phases are fair. After a writer (turn is 'readers') all waiting readers enter together. After the
-- readers, one writer gets the key. So while L is shared, the first waiter in Q is a writer, and
-- the readers in Q wait behind it.
local function enter(now, member, ms)
  redis.call('ZADD', KEYS[4], 'GT', string.format('%.0f', math.floor(now / 1000) + ms), member)
  -- PEXPIRE is called even when it changes nothing, because WAIT covers only writes.
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ms))
  redis.call('PEXPIRE', KEYS[4], math.max(redis.call('PTTL', KEYS[4]), ms))
end

-- remember is called before a token enters an open phase. If R was evicted, the present readers
-- are unknown but still hold the key. A newcomer would then count as the only reader, and its
-- release would free L. So remember adds an entry without a name for the unknown readers.
local function remember(now)
  local left = redis.call('EXISTS', KEYS[4]) == 0 and redis.call('PTTL', KEYS[1])
  if left and left > 0 then
    enter(now, 'forgotten|-', left)
  end
end

-- queued finds in Q the first waiter, all readers, and the first writer. It removes each dead
-- waiter from Q, with all other waiters of the same process. The rules for dead waiters are the
-- same as in hand. A writer behind another writer is checked only when its turn comes. A mode that
-- this version does not know counts as a writer.
local function queued(own)
  local first, readers, writer = nil, {}, nil
  local alive, gone, unchecked = {}, {}, {}
  local page = redis.call('ZRANGE', KEYS[2], '0', '-1', 'WITHSCORES')
  for i = 1, #page, 2 do
    local token, inbox, ms, mode, block, metadata =
      string.match(page[i], '^([^|]+)|([^|]+)|([1-9]%d*)|([^|]*)|([1-9]%d*)|[^|]*|(.*)$')
    local w = {
      entry = page[i], ticket = tonumber(page[i + 1]), token = token, inbox = inbox, ms = ms, mode = mode, block = block,
      metadata = metadata,
    }
    if not token or alive[inbox] == false then
      gone[#gone + 1] = w.entry -- the entry has another format, or its process is gone
    elseif mode == '1' or not writer then
      local lives = token == own or w.ticket >= 0 -- a ticket below 0: the key was handed to this waiter, and the hand-off lapsed
      if lives and token ~= own and inbox ~= '-' then
        if alive[inbox] == nil then
          alive[inbox] = listeners(inbox) > 0
        end
        lives = alive[inbox]
      end
      if lives then
        if mode == '1' then
          readers[#readers + 1] = w
        else
          writer = w
        end
        first = first or w
      else
        gone[#gone + 1] = w.entry
        if inbox ~= '-' then
          alive[inbox] = false
        end
      end
    else
      unchecked[#unchecked + 1] = w
    end
  end
  for _, w in ipairs(unchecked) do
    if alive[w.inbox] == false then
      gone[#gone + 1] = w.entry
    end
  end
  remove(gone)
  return first, readers, writer
end

local function blocked()
  local _, _, writer = queued(nil)
  return writer ~= nil
end

-- let_in makes the given readers enter the phase. It notifies all of them except "own", which gets
-- a reply.
local function let_in(now, stamp, fence, readers, writer, own, by)
  for _, w in ipairs(readers) do
    redis.call('ZREM', KEYS[2], w.entry)
    enter(now, w.token .. '|' .. w.inbox, w.ms)
    if w.inbox ~= '-' and w.token ~= own then
      notify(w.inbox, string.format('admitted %s %s %s %s %s%s %s',
        stamp, fence, writer and '1' or '0', w.ms, w.token, by or '', KEYS[1]))
    end
  end
end

-- admit lets all waiting readers into the phase in L. It is called when it is the readers' turn.
local function admit(now, stamp, lease, own)
  local _, readers, writer = queued(own)
  if readers[1] then
    remember(now)
  end
  let_in(now, stamp, string.match(lease, '^[^:]*:(%d+)'), readers, writer, own)
end

-- announce notifies the readers in the phase that a writer waits. After this message, their
-- processes let no further reader use the lease.
local function announce()
  for _, member in ipairs(redis.call('ZRANGE', KEYS[4], '0', '-1')) do
    local token, inbox = string.match(member, '^([^|]+)|([^|]+)$')
    if token and inbox ~= '-' then
      notify(inbox, 'writer ' .. token .. ' ' .. KEYS[1])
    end
  end
end

local function serve(now, stamp, counter, own, turn, by)
  if exhausted(counter) then
    return nil -- grant would refuse half-way: see hand
  end
  local first, readers, writer = queued(own)
  if not first then
    return nil
  end
  if readers[1] and (turn == 'readers' or first.mode == '1') then
    local ms = 0
    for _, w in ipairs(readers) do
      ms = math.max(ms, tonumber(w.ms))
    end
    redis.call('DEL', KEYS[4])
    ms = string.format('%.0f', ms)
    local lease, fence = grant(now, stamp, counter, 'shared', ms, '1', readers[1].metadata)
    let_in(now, stamp, fence, readers, writer, own, by)
    tell(now, nil, 500000, ms)
    return lease, ms
  end
  if writer.token == own then
    redis.call('ZREM', KEYS[2], writer.entry)
    return nil
  end
  redis.call('DEL', KEYS[4])
  redis.call('ZADD', KEYS[2], string.format('%.0f', -math.max(writer.ticket, 1)), writer.entry)
  local lease, fence, reserved = grant(now, stamp, counter, writer.token, writer.ms, writer.block, writer.metadata)
  if writer.inbox ~= '-' then
    notify(writer.inbox, string.format('granted %s %s %s %s %s%s %s',
      stamp, fence, reserved, writer.ms, writer.token, by or '', KEYS[1]))
  end
  tell(now, writer.inbox, 500000, writer.ms)
  return lease, writer.ms
end
