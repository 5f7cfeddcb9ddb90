-- claim_one: claim for a single resource, without JSON.
-- $1 resource · $2 fence · $3 owner · $4 operation · $5 idle limit in ms
-- Returns how many resources were claimed: 1 or 0.
WITH claimed AS (
	INSERT INTO latchkit_fence AS f (resource, fence, owner, claimed_at)
	SELECT $1::text, $2::bigint, $3::text, now()
	WHERE $2::bigint > (SELECT coalesce(max(fence), 0) FROM latchkit_fence WHERE resource = '')
	ON CONFLICT (resource) DO UPDATE
	SET fence = EXCLUDED.fence, owner = EXCLUDED.owner, claimed_at = EXCLUDED.claimed_at
	WHERE f.fence < EXCLUDED.fence OR (f.fence = EXCLUDED.fence AND f.owner = EXCLUDED.owner)
	RETURNING f.resource
), noted AS (
	INSERT INTO latchkit_ledger (op, resource, fence)
	SELECT $4::text, $1::text, $2::bigint
)
SELECT count(*), set_config('latchkit.op', $4::text, true),
	set_config('idle_in_transaction_session_timeout', least(nullif(
		(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)
		* 1000)::bigint, 0), $5::bigint)::text, true)
FROM claimed
