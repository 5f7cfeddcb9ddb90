-- forget: removes operations older than the given operation.
-- $1 operation
DELETE FROM latchkit_ledger WHERE op < $1
