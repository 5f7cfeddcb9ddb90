-- verify: 1 if the claim of a resource still stands in its row, else 0. It follows a write, so the
-- row cannot change any more.
-- ? resource · ? fence · ? owner
SELECT count(*) FROM latchkit_fence WHERE resource = ? AND fence = ? AND owner = ?
