-- verify: locks the row of a resource if the claim still stands in it, and notes the operation.
-- $1 resource · $2 fence · $3 owner · $4 operation, '' notes none
-- Answers 1, or 0 where somebody else has claimed the resource since.
WITH held AS MATERIALIZED (
	SELECT resource, fence FROM latchkit_fence
	WHERE resource = $1 AND fence = $2 AND owner = $3
	FOR UPDATE
), noted AS (
	INSERT INTO latchkit_ledger (op, resource, fence)
	SELECT $4::text, resource, fence FROM held WHERE $4::text <> ''
)
SELECT count(*) FROM held
