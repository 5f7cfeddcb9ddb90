-- note: notes the operation.
-- ? operation · ? resource · ? fence
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, ?)
