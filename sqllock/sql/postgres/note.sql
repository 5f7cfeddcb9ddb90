-- note: writes the operation into the ledger, and sets the mark that the statement proof checks. It
-- also sets how long the transaction may be idle, unless the server's own limit is shorter.
-- $1 operation · $2 resource · $3 fence · $4 idle limit in ms
WITH noted AS (
	INSERT INTO latchkit_ledger (op, resource, fence) VALUES ($1, $2, $3)
)
SELECT set_config('latchkit.op', $1::text, true), set_config('idle_in_transaction_session_timeout', least(nullif(
	(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0), $4::bigint)::text, true)
