-- compare: counts the lease of a resource unless it was overtaken.
-- ? resource · ? fence
SELECT @latchkit_claims + (COUNT(*) = 0) INTO @latchkit_claims FROM latchkit_fence
WHERE resource IN (?, '') AND fence > ?
