-- verify: locks the rows of the resources whose claims still stand. It writes the rows anew,
-- because a claim that waits for a row may have a snapshot from before the commit of this
-- transaction. PostgreSQL refuses that claim only if the row has changed.
-- $1 leases as JSON: [{"resource": …, "fence": …}] · $2 owner
-- Returns how many claims still stand.
WITH held AS (
	UPDATE latchkit_fence AS f SET owner = f.owner
	FROM json_to_recordset($1::text::json) AS l (resource text, fence bigint)
	WHERE f.resource = l.resource AND f.fence = l.fence AND f.owner = $2
	RETURNING f.fence
)
SELECT count(*) FROM held
