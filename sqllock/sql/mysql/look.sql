-- look: the newest claim of a resource, or the floor where that is larger; 0 and '' where there is
-- neither.
-- ? resource
SELECT COALESCE(MAX(fence), 0), COALESCE(MAX(IF(resource <> '', owner, NULL)), '')
FROM latchkit_fence WHERE resource IN (?, '')
