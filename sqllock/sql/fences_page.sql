-- fences_page: some fences that Purge may remove, by the order of their resources.
-- ? resource before the page · ? floor · ? age in s
SELECT COUNT(*), COALESCE(MAX(p.resource), '') FROM (SELECT resource FROM latchkit_fence
	WHERE resource > ? AND fence <= ? AND claimed_at < ago(?) ORDER BY resource LIMIT 1000) AS p
