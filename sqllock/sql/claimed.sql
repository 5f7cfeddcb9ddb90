-- claimed: 1 if the claim of a resource stands, or 0.
-- ? resource · ? fence · ? owner · ? fence
SELECT COUNT(*) FROM latchkit_fence WHERE resource = ? AND fence = ? AND owner = ?
AND ? > COALESCE((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
