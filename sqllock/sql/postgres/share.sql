-- share: locks a resource against claims until the transaction ends. Other
-- transactions may share it too.
-- $1 resource · $2 fence · $3 fence
-- Returns 1, or 0 if the row or the floor has a larger fence.
SELECT count(*) FROM (
	SELECT FROM latchkit_fence WHERE resource = $1 AND fence <= $2::bigint
	AND $3::bigint > (SELECT coalesce(max(fence), 0) FROM latchkit_fence WHERE resource = '')
	FOR SHARE
) AS shared
