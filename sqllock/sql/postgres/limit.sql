-- limit: bounds how long the transaction may be idle, unless the server's own bound is shorter.
-- $1 idle limit in ms
SELECT set_config('idle_in_transaction_session_timeout', least(nullif(
	(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0), $1::bigint)::text, true)
