-- fences_forget: removes the fences of a page.
-- $1 resource before the page · $2 last resource of the page · $3 floor · $4 age in s
DELETE FROM latchkit_fence WHERE resource > $1 AND resource <= $2 AND fence <= $3 AND claimed_at < now() - make_interval(secs => $4::bigint)
