-- compare: adds 1 to @latchkit_claims for a resource, unless the lease was overtaken.
-- ? resource · ? fence
SELECT @latchkit_claims + (COUNT(*) = 0) INTO @latchkit_claims FROM latchkit_fence
WHERE resource IN (?, '') AND fence > ?
