-- claim: writes fence and owner into the rows of the resources, which stay locked until the
-- transaction ends; writes the operation into the ledger; sets how long the transaction may be
-- idle; and sets the mark that the statement proof checks.
-- $1 leases as JSON: [{"resource": …, "fence": …}], the first lease is named in the ledger
-- $2 owner · $3 operation · $4 idle limit in ms
-- Returns how many resources were claimed. A resource is not claimed if its row has a larger fence,
-- or the same fence of another owner, or if the floor is not smaller than the fence.
WITH lease AS (
	SELECT resource, fence FROM json_to_recordset($1::text::json) AS l (resource text, fence bigint)
), claimed AS (
	INSERT INTO latchkit_fence AS f (resource, fence, owner, claimed_at)
	SELECT resource, fence, $2::text, now() FROM lease
	WHERE fence > (SELECT coalesce(max(fence), 0) FROM latchkit_fence WHERE resource = '')
	ORDER BY resource COLLATE "C"
	ON CONFLICT (resource) DO UPDATE
	SET fence = EXCLUDED.fence, owner = EXCLUDED.owner, claimed_at = EXCLUDED.claimed_at
	WHERE f.fence < EXCLUDED.fence OR (f.fence = EXCLUDED.fence AND f.owner = EXCLUDED.owner)
	RETURNING f.resource
), noted AS (
	INSERT INTO latchkit_ledger (op, resource, fence)
	SELECT $3::text, resource, fence FROM lease LIMIT 1
)
SELECT count(*), set_config('latchkit.op', $3::text, true), set_config('idle_in_transaction_session_timeout', least(nullif(
	(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0), $4::bigint)::text, true)
FROM claimed
