-- operations_forget: removes operations of WithOperation older than an age.
-- $1 age in s
DELETE FROM latchkit_operation WHERE done_at < now() - make_interval(secs => $1::bigint)
