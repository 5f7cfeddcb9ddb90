-- share: 1 if a reader may use a resource, or 0 if its row or the floor has a larger fence. No claim
-- can come: the transaction has SQLite's only write lock.
-- ? resource · ? fence · ? fence
SELECT COUNT(*) FROM latchkit_fence WHERE resource = ? AND fence <= ?
AND ? > COALESCE((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
