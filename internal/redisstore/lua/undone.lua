-- undone.lua: leave a tombstone and change nothing else. The script is for a slot that moves.
--
-- KEYS: tombstone X of the token
-- ARGV: for how long to keep X, in ms
-- returns: "1"
-- idempotent: a note or a tombstone that exists stays as it is.
-- first write: GETEX, which changes nothing. A full server accepts GETEX, and all writes that
--   follow.
redis.call('GETEX', KEYS[1])
redis.call('SET', KEYS[1], 'undone', 'PX', ARGV[1], 'NX')
return '1'
