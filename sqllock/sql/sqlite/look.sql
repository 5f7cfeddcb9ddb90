-- look: the newest claim of a resource; 0 and '' where there is none.
-- ? resource
SELECT coalesce(max(fence), 0), coalesce(max(owner), '') FROM latchkit_fence WHERE resource = ?
