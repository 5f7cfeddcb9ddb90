-- give_up: writes a row in the place of an operation in the ledger, so that the operation cannot be
-- written later. If an open transaction has written the operation, give_up waits until that
-- transaction ends.
-- ? operation · ? resource
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, 0) ON CONFLICT (op) DO NOTHING
