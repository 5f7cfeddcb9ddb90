-- verify: 1 if the claim of a resource still stands in its row, else 0. It locks the row.
-- ? resource · ? fence · ? owner
SELECT COUNT(*) FROM latchkit_fence WHERE resource = ? AND fence = ? AND owner = ? FOR UPDATE
