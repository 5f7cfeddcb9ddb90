-- claimed: adds 1 to @latchkit_claims for a resource, if its claim stands.
-- ? resource · ? fence · ? owner · ? fence
SELECT @latchkit_claims + COUNT(*) INTO @latchkit_claims FROM latchkit_fence
WHERE resource = ? AND fence = ? AND owner = ?
AND ? > COALESCE((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
