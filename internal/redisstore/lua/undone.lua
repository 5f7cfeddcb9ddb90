-- undone.lua: leave a tombstone and touch nothing else: for a slot that moves.
--
-- KEYS: tombstone X of the token
-- ARGV: keep it this long, in ms
-- returns: "1"
-- idempotent: a note or a tombstone that is there stays as it is.
-- first write: GETEX, which changes nothing. A full server does not refuse it, nor any write after
--   it.
redis.call('GETEX', KEYS[1])
redis.call('SET', KEYS[1], 'undone', 'PX', ARGV[1], 'NX')
return '1'
