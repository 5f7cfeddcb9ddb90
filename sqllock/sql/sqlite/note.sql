-- note: notes the operation. As a write it also makes sure that what the transaction has read is still the newest.
-- ? operation · ? resource · ? fence
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, ?)
