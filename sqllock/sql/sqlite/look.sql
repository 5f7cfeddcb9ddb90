-- look: the newest claim of a resource, or the floor if the floor is larger. The result is 0 and ''
-- if there is neither a claim nor a floor.
-- ? resource
SELECT coalesce(max(fence), 0), coalesce(max(CASE WHEN resource <> '' THEN owner END), '')
FROM latchkit_fence WHERE resource IN (?, '')
