-- note: writes the operation into the ledger. As a write it also makes sure that what the
-- transaction has read is still the newest.
-- ? operation · ? resource · ? fence
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, ?)
