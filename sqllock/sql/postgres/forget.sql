-- forget: removes operations older than one.
-- $1 operation
DELETE FROM latchkit_ledger WHERE op < $1
