-- share: locks a resource against claims until the transaction ends. Other
-- transactions may share it too.
-- ? resource · ? fence · ? fence
-- Returns 1, or 0 if the row or the floor has a larger fence.
SELECT COUNT(*) FROM latchkit_fence
WHERE resource = ? AND fence <= ?
AND ? > COALESCE((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
LOCK IN SHARE MODE
