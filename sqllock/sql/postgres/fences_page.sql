-- fences_page: some fences that Purge may remove, by the order of their resources.
-- $1 resource before the page · $2 floor · $3 age in s
SELECT COUNT(*), COALESCE(MAX(p.resource), '') FROM (SELECT resource FROM latchkit_fence
	WHERE resource > $1 AND fence <= $2 AND claimed_at < now() - make_interval(secs => $3::bigint) ORDER BY resource LIMIT 1000) AS p
