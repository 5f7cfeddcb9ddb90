-- compare: adds 1 to @latchkit_claims for a resource, unless its row or the floor has a larger
-- fence.
-- ? resource · ? fence
SELECT @latchkit_claims + (COUNT(*) = 0) INTO @latchkit_claims FROM latchkit_fence
WHERE resource IN (?, '') AND fence > ?
