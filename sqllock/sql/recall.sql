-- recall: 1 if the operation was committed and not given up, else 0.
-- ? operation
SELECT COUNT(*) FROM latchkit_ledger WHERE op = ? AND fence > 0
