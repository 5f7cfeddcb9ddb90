-- look: the newest claim of a resource, or the floor where that is larger; 0 and '' where there is
-- neither.
-- ? resource
SELECT coalesce(max(fence), 0), coalesce(max(CASE WHEN resource <> '' THEN owner END), '')
FROM latchkit_fence WHERE resource IN (?, '')
