-- give_up: takes the place of an operation in the ledger, so that the operation cannot be written
-- there any more. If it was written, this waits until that is committed or rolled back.
-- $1 operation · $2 resource
INSERT INTO latchkit_ledger (op, resource, fence) VALUES ($1, $2, 0) ON CONFLICT (op) DO NOTHING
