-- operation: marks the caller's operation as done. It fails if the operation is done already. If
-- another open transaction has written the operation, the statement waits until that transaction
-- ends.
-- ? name · ? resource · ? fence
INSERT INTO latchkit_operation (name, resource, fence) VALUES (?, ?, ?)
