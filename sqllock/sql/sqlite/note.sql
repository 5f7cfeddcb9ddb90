-- note: writes the operation into the ledger. Because it writes, it fails if the
-- transaction has read stale data.
-- ? operation · ? resource · ? fence
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, ?)
