-- give_up: takes the place of an operation in the ledger, so that the operation cannot be written
-- there any more. As a write it waits until no other transaction writes.
-- ? operation · ? resource
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, 0) ON CONFLICT (op) DO NOTHING
