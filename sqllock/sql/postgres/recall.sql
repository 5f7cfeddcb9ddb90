-- recall: 1 if the operation was committed and not given up, else 0.
-- $1 operation
SELECT count(*) FROM latchkit_ledger WHERE op = $1 AND fence > 0
