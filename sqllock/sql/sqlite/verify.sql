-- verify: 1 if the claim of a resource still stands in its row, else 0. It runs after a
-- write, so no other transaction can change the row.
-- ? resource · ? fence · ? owner
SELECT count(*) FROM latchkit_fence WHERE resource = ? AND fence = ? AND owner = ?
