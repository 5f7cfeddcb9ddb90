-- floor: the floor, unless it was raised within an age; 0 if there is no such floor.
-- $1 age in s
SELECT COALESCE(MAX(fence), 0) FROM latchkit_fence WHERE resource = '' AND claimed_at < now() - make_interval(secs => $1::bigint)
