-- operation: marks the caller's operation as done. It fails if the operation is done already. If
-- another open transaction has written the operation, the statement waits until that transaction
-- ends.
-- $1 name · $2 resource · $3 fence
INSERT INTO latchkit_operation (name, resource, fence) VALUES ($1, $2, $3)
