-- floor: the floor, if it was last raised longer ago than an age; otherwise 0.
-- $1 age in s
SELECT COALESCE(MAX(fence), 0) FROM latchkit_fence WHERE resource = '' AND claimed_at < now() - make_interval(secs => $1::bigint)
