-- claim: puts fence and owner into the row of a resource, which stays locked until the transaction ends, notes the
-- operation, and bounds how long the transaction may be idle.
-- $1 resource · $2 fence · $3 owner · $4 operation, '' notes none · $5 idle limit in ms
-- Answers 1, or 0 where a larger fence is in the row, or the same one of another owner. Twice is as good as once, but for
-- the operation, which is new in each transaction.
WITH claimed AS (
	INSERT INTO latchkit_fence AS f (resource, fence, owner, claimed_at)
	VALUES ($1, $2, $3, now())
	ON CONFLICT (resource) DO UPDATE
	SET fence = EXCLUDED.fence, owner = EXCLUDED.owner, claimed_at = EXCLUDED.claimed_at
	WHERE f.fence < EXCLUDED.fence OR (f.fence = EXCLUDED.fence AND f.owner = EXCLUDED.owner)
	RETURNING f.resource, f.fence
), noted AS (
	INSERT INTO latchkit_ledger (op, resource, fence)
	SELECT $4::text, resource, fence FROM claimed WHERE $4::text <> ''
)
SELECT count(set_config('idle_in_transaction_session_timeout', least(nullif(
	(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0), $5::bigint)::text, true))
FROM claimed
