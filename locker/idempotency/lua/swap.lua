-- swap.lua: replace a record by the next one.
--
-- KEYS: record
-- ARGV: run of the expected record · its open mark, '1' or '' · run of the next record · its open
--       mark · lifetime in ms · [answer of the next record]; an empty run means no record
-- returns: run · open mark · answer of the record that the key then has; a missing field is nil
--          · or the error of a server without room for the next record
-- idempotent: a second execution does not find the expected record, and changes nothing. Each run
--   has a name of its own.
-- first write: DEL, HSET or HDEL. When a full server refuses HSET and the record is of another run,
--   nothing has happened. When the record is of the same run, the first write is HDEL of the open
--   mark, which a full server accepts: the record then shows that the work is done.

local was = redis.call('HMGET', KEYS[1], 'run', 'open', 'answer')
local run, open = was[1] or '', was[2] or ''
if run ~= ARGV[1] or open ~= ARGV[2] then return was end

if ARGV[3] == '' then
  redis.call('DEL', KEYS[1])
  return {false, false, false}
end

local refused
if run ~= ARGV[3] or ARGV[6] or open == '' and ARGV[4] ~= '' then
  -- A field that is not written is replaced by the run again.
  local open_too, answer_too = ARGV[4] ~= '', ARGV[6] ~= nil
  local reply = redis.pcall('HSET', KEYS[1], 'run', ARGV[3],
    open_too and 'open' or 'run', open_too and ARGV[4] or ARGV[3],
    answer_too and 'answer' or 'run', answer_too and ARGV[6] or ARGV[3])
  if type(reply) == 'table' and reply.err then
    if run ~= ARGV[3] then return reply end
    refused = reply
  end
end
if ARGV[4] == '' then redis.call('HDEL', KEYS[1], 'open') end
if not ARGV[6] then redis.call('HDEL', KEYS[1], 'answer') end -- an answer of an earlier run
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return refused or {ARGV[3], ARGV[4], false}
