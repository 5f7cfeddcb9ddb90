-- forget: removes operations older than one.
-- ? operation
DELETE FROM latchkit_ledger WHERE op < ?
