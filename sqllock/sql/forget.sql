-- forget: removes operations older than the given operation.
-- ? operation
DELETE FROM latchkit_ledger WHERE op < ?
