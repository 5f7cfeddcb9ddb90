-- verify: 1 if the claim still stands in the row of a resource, which is locked then, else 0.
-- ? resource · ? fence · ? owner
SELECT COUNT(*) FROM latchkit_fence WHERE resource = ? AND fence = ? AND owner = ? FOR UPDATE
