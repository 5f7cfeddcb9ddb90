-- compare: counts the leases that were overtaken, takes the snapshot of a transaction that only
-- reads, sets the mark that the statement proof checks, and sets the idle limit.
-- $1 leases as JSON: [{"resource": …, "fence": …}] · $2 operation · $3 idle limit in ms
-- Returns how many resources have a larger fence in their row, or in the floor.
SELECT count(f.resource), set_config('latchkit.op', $2::text, true),
	set_config('idle_in_transaction_session_timeout', least(nullif(
		(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)
		* 1000)::bigint, 0), $3::bigint)::text, true)
FROM json_to_recordset($1::text::json) AS l (resource text, fence bigint)
JOIN latchkit_fence f ON f.resource IN (l.resource, '') AND f.fence > l.fence
