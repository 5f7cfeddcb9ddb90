-- save.lua: replace the record in progress by the answer.
--
-- KEYS: record
-- ARGV: fence, 20 digits · fingerprint · lifetime in ms · [response; without a response, the record
--       shows only that the work is done]
-- returns: "saved" · "overtaken" when the record belongs to another run · the error of a server
--          without room for the response; a record that was in progress then shows that the work is
--          done
-- idempotent: a second execution finds the record without its open mark, and changes nothing.
-- first write: HSET. When a full server refuses HSET, the first write is HDEL of the open mark,
--   which a full server accepts.

local was = redis.call('HMGET', KEYS[1], 'fence', 'fingerprint', 'open')
if was[1] then
  if was[1] ~= ARGV[1] or was[2] ~= ARGV[2] then return 'overtaken' end
  if not was[3] then return 'saved' end
end

local refused
if not was[1] or ARGV[4] then
  local fields = {'fence', ARGV[1], 'fingerprint', ARGV[2]}
  if ARGV[4] then
    fields[5], fields[6] = 'response', ARGV[4]
  end
  local reply = redis.pcall('HSET', KEYS[1], unpack(fields))
  if type(reply) == 'table' and reply.err then refused = reply end
end
redis.call('HDEL', KEYS[1], 'open')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return refused or 'saved'
