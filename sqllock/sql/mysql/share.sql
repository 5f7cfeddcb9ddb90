-- share: locks a resource against claims until the transaction ends. Other
-- transactions may share it too.
-- Adds 1 to @latchkit_claims, unless its row or the floor has a larger fence.
-- ? resource · ? fence · ? fence
SELECT @latchkit_claims + COUNT(*) INTO @latchkit_claims FROM latchkit_fence
WHERE resource = ? AND fence <= ?
AND ? > COALESCE((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
LOCK IN SHARE MODE
