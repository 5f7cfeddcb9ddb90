-- floor: the floor, if it was last raised longer ago than an age; otherwise 0.
-- ? age in s
SELECT COALESCE(MAX(fence), 0) FROM latchkit_fence WHERE resource = '' AND claimed_at < ago(?)
