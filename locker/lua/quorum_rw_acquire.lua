-- quorum_rw_acquire.lua: give one node's vote for a lease to a writer, or let a reader in, or say who has it, and wait in line.
--
-- KEYS: lease L · queue Q · wake mark W · fence counter C · tombstone X of the token · done mark D · marker N of the node
--       · readers R · intent I of a writer
-- ARGV: token · ttl in ms · fences to reserve · "1" when the done mark counts, else "0" · metadata, may be "" · the inbox
--       where it waits, "" when it does not · the fence that the client proposes · the largest clock skew in µs · its ticket
--       · the token's entry in R, for a reader, "" for a writer · "1" when it will ask again, else "0"
-- returns: as quorum_acquire.lua, and for a reader "entered" server-µs PTTL writers L, where writers is "1" when one waits
-- idempotent: a second execution finds the token in L or in R, answers with the same L and at most lengthens it; or it
--   finds the token in Q, where it keeps its ticket; after an undo it finds X.
-- first write: SET C for a free L, ZADD of a reader that enters, which a full server refuses, and then nothing has happened;
--   otherwise GETEX, DEL or PEXPIRE, which no full server refuses, and every replica.
--
-- L of a phase is shared:fence:1:fence:metadata. I keeps new readers out while a writer waits, for 3 s after it has last asked;
-- no order follows from it.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = string.format('%.0f', now)
local at = ' ' .. stamp .. ' '

local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[7], KEYS[9])
local lease, woken, counter, tombstone, intent = found[1], found[2], found[3], found[4], found[6]
if not member(found[5]) then
  return 'forgot' .. at
end
if tombstone then
  if string.sub(tombstone, 1, 8) == 'revoked:' then
    return 'revoked' .. at .. string.sub(tombstone, 9)
  end
  return 'undone' .. at
end
if ARGV[4] == '1' and redis.call('GET', KEYS[6]) then
  return 'done' .. at
end

local owner, entry_in_r = ARGV[1] .. ':', ARGV[10]
local reader = entry_in_r ~= ''
if lease and string.sub(lease, 1, #owner) == owner then
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
  return 'granted' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
end

local intends, where = string.match(intent or '', '^([^|]*)|(.*)$')
if reader and intends and where ~= '' and hearing(where) == 0 then
  redis.call('DEL', KEYS[9]) -- the writer's process is gone
  intends = nil
end

local mode = reader and '1' or '0'
local entry = ARGV[1] .. '|' .. ARGV[6] .. '|' .. ARGV[4] .. '|' .. mode
local function entered()
  redis.call('ZADD', KEYS[8], 'GT', string.format('%.0f', math.floor(now / 1000) + ARGV[2]), entry_in_r)
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
  redis.call('PEXPIRE', KEYS[8], math.max(redis.call('PTTL', KEYS[8]), ARGV[2]))
  if ARGV[6] ~= '' then
    redis.call('ZREM', KEYS[2], entry)
  end
  return 'entered' .. at .. redis.call('PTTL', KEYS[1]) .. ' ' .. (intends and '1' or '0') .. ' ' .. lease
end

local phase = lease and string.sub(lease, 1, 7) == 'shared:'
if reader and phase and tonumber(redis.call('ZSCORE', KEYS[8], entry_in_r) or '0') > now / 1000 then
  return entered()
end
local open
if not reader then
  open = not lease and (not woken or woken == ARGV[1])
elseif phase then
  open = not intends or woken == 'readers'
else
  open = not lease and (woken == 'readers' or not intends and not woken)
end
if not open then
  -- GETEX changes nothing, but makes a lagging replica answer READONLY instead of a false "busy", and lets what follows pass on a
  -- full server.
  redis.call('GETEX', KEYS[1])
  if not reader and ARGV[11] == '1' and (not intends or intends == ARGV[1]) then
    intends = ARGV[1]
    redis.call('SET', KEYS[9], ARGV[1] .. '|' .. ARGV[6], 'PX', '3000')
    if phase then
      for _, r in ipairs(redis.call('ZRANGE', KEYS[8], '0', '-1')) do
        local token, inbox = string.match(r, '^([^|]+)|([^|]+)$')
        if token and inbox ~= '-' then
          say(inbox, 'writer ' .. token .. ' ' .. KEYS[1])
        end
      end
    end
  end
  local place, listening = redis.call('ZCOUNT', KEYS[2], '0', '+inf') + 1, '-'
  if ARGV[6] ~= '' then
    redis.call('ZADD', KEYS[2], ARGV[9], entry)
    redis.call('PEXPIRE', KEYS[2], '60000')
    place, listening = redis.call('ZRANK', KEYS[2], entry) + 1, hearing(ARGV[6])
  end
  if intends == ARGV[1] then
    place = 1 -- so it asks often, and its intent lasts
  end
  local left, holder = redis.call('PTTL', KEYS[1]), lease
  if not lease and woken then
    left, holder = redis.call('PTTL', KEYS[3]), (woken == 'readers' and 'shared' or woken) .. ':0:0'
  elseif not lease then
    left, holder = redis.call('PTTL', KEYS[9]), intends .. ':0:0'
  end
  return 'busy' .. at .. left .. ' ' .. place .. ' ' .. listening .. ' ' .. holder
end
if phase then
  return entered()
end

if not counter then
  redis.call('GET', KEYS[4]) -- MGET says the same of data that is no counter; this refuses it
end
redis.call('ZCARD', KEYS[8])
-- The fence: see quorum_acquire.lua.
local skew = tonumber(ARGV[8])
local hint = math.min(tonumber(ARGV[7]), now + skew)
local fence, block = math.max((tonumber(counter or '0') or 0) + 1, hint), reader and 1 or tonumber(ARGV[3])
if now > hint + skew then
  fence = math.max(fence, now)
end
if fence + block - 1 > now + 100000 then
  block = 1
end
local minted = string.format('%.0f', fence)
lease = (reader and 'shared:' or owner) .. minted .. ':' .. string.format('%.0f', block) .. ':' .. minted .. ':' .. ARGV[5]
redis.call('SET', KEYS[4], string.format('%.0f', fence + block - 1))
if not redis.call('SET', KEYS[1], lease, 'PX', ARGV[2], 'NX') then
  redis.call('GET', KEYS[1]) -- WRONGTYPE: the key holds data that is no lock
end
redis.call('DEL', KEYS[8]) -- of readers whose L was taken away
if reader then
  return entered()
end
if ARGV[6] ~= '' then
  redis.call('ZREM', KEYS[2], entry)
end
if woken then
  redis.call('DEL', KEYS[3])
end
return 'granted' .. at .. ARGV[2] .. ' ' .. lease
