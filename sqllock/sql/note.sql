-- note: writes the operation into the ledger.
-- ? operation · ? resource · ? fence
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, ?)
