-- look: the newest claim of a resource, or the floor if the floor is larger. The result is 0 and ''
-- if there is neither a claim nor a floor.
-- ? resource
SELECT COALESCE(MAX(fence), 0), COALESCE(MAX(IF(resource <> '', owner, NULL)), '')
FROM latchkit_fence WHERE resource IN (?, '')
