-- operation: marks the caller's operation as done. It fails if the operation is done already. It
-- waits while another open transaction has written it.
-- ? name · ? resource · ? fence
INSERT INTO latchkit_operation (name, resource, fence) VALUES (?, ?, ?)
