-- compare: counts the leases that were overtaken, takes the snapshot of a transaction that only
-- reads, and sets the mark that the statement proof checks.
-- $1 leases as JSON: [{"resource": …, "fence": …}] · $2 operation
-- Returns how many resources have a larger fence in their row, or in the floor.
SELECT count(f.resource), set_config('latchkit.op', $2::text, true)
FROM json_to_recordset($1::text::json) AS l (resource text, fence bigint)
JOIN latchkit_fence f ON f.resource IN (l.resource, '') AND f.fence > l.fence
