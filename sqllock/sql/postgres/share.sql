-- share: lets nobody claim a resource until the transaction ends, beside others who share it.
-- $1 resource · $2 fence
-- Answers 1, or 0 where a larger fence is in the row or in the floor.
SELECT count(*) FROM (
	SELECT FROM latchkit_fence WHERE resource = $1 AND fence <= $2::bigint
	AND $2::bigint > (SELECT coalesce(max(fence), 0) FROM latchkit_fence WHERE resource = '')
	FOR SHARE
) AS shared
