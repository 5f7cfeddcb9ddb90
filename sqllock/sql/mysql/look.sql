-- look: the newest claim of a resource; 0 and '' where there is none.
-- ? resource
SELECT COALESCE(MAX(fence), 0), COALESCE(MAX(owner), '') FROM latchkit_fence WHERE resource = ?
