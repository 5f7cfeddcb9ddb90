-- give_up: writes a row in the place of an operation in the ledger, so that the operation cannot be
-- written later. Like every write, it waits until no other transaction writes.
-- ? operation · ? resource
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, 0) ON CONFLICT (op) DO NOTHING
