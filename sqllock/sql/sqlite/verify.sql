-- verify: 1 if the claim still stands in the row of a resource, else 0. It follows a write, so nobody else can change it.
-- ? resource · ? fence · ? owner
SELECT count(*) FROM latchkit_fence WHERE resource = ? AND fence = ? AND owner = ?
