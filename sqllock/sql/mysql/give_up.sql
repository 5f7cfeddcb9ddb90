-- give_up: takes the place of an operation in the ledger, so that the operation cannot be written
-- there any more. If it was written, this waits until that is committed or rolled back.
-- ? operation · ? resource
INSERT INTO latchkit_ledger (op, resource, fence) VALUES (?, ?, 0) ON DUPLICATE KEY UPDATE op = op
