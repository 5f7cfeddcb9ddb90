-- verify: locks the row of a resource if the claim still stands in it. It writes the row anew: a claim that waits for it may
-- have a snapshot that is older than what this transaction commits, and PostgreSQL refuses it only if the row has changed.
-- $1 resource · $2 fence · $3 owner
-- Answers 1, or 0 where somebody else has claimed the resource since.
WITH held AS (
	UPDATE latchkit_fence SET owner = owner
	WHERE resource = $1 AND fence = $2 AND owner = $3
	RETURNING fence
)
SELECT count(*) FROM held
