-- verify: 1 if the claim of a resource still stands in its row, which is locked then, else 0.
-- ? resource · ? fence · ? owner
SELECT COUNT(*) FROM latchkit_fence WHERE resource = ? AND fence = ? AND owner = ? FOR UPDATE
