-- recall: 1 if the operation was committed, else 0.
-- $1 operation
SELECT count(*) FROM latchkit_ledger WHERE op = $1
