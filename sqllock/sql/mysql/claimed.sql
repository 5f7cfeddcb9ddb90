-- claimed: counts the claim of a resource if it stands.
-- ? resource · ? fence · ? owner · ? fence
SELECT @latchkit_claims + COUNT(*) INTO @latchkit_claims FROM latchkit_fence
WHERE resource = ? AND fence = ? AND owner = ?
AND ? > COALESCE((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
