-- operations_forget: removes operations of Handle.Operation older than an age.
-- $1 age in s
DELETE FROM latchkit_operation WHERE done_at < now() - make_interval(secs => $1::bigint)
