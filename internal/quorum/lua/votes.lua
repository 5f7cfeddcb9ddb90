-- votes.lua: whether this node may vote now.
--
-- fragment: votes(marker, settings, stamp)
-- KEYS: none
-- returns: a value that is true if the marker was written for the data that this server serves,
--   has the settings of the caller, and says that the node votes since a time that is not after
--   stamp
-- idempotent: it writes nothing.
--
-- A marker is id/since/nodes/ttl: the server's replication ID (40 digits), since when the node may
-- vote by its own clock, in µs (16 digits, as every clock has them from 2001 to 2286), the number
-- of nodes, and the longest TTL of a lease in ms. The settings are the last two parts. The ID
-- changes when a server starts and when a replica is promoted. The time of 16 nines says that the
-- wait has not begun. Texts of equal length compare like numbers.
local function votes(marker, settings, stamp)
  return marker and string.sub(marker, 59) == settings and #stamp == 16 and string.sub(marker, 42, 57) <= stamp and
    string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(marker, 1, 40), 1, true)
end
