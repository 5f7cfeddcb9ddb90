-- proof: fails with a division by zero unless the transaction that claim or note has marked is
-- open. The mark is local to that transaction, so it is gone after any COMMIT or ROLLBACK.
-- $1 operation
SELECT 1 / (current_setting('latchkit.op', true) IS NOT DISTINCT FROM $1::text)::int
