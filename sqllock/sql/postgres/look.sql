-- look: the newest claim of a resource, or the floor if the floor is larger. The result is 0 and ''
-- if there is neither a claim nor a floor.
-- $1 resource
SELECT coalesce(max(fence), 0), coalesce(max(owner) FILTER (WHERE resource <> ''), '')
FROM latchkit_fence WHERE resource IN ($1, '')
