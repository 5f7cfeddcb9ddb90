-- operation: marks the caller's operation as done. It fails where the operation is done already,
-- and waits while another transaction is about to do it.
-- ? name · ? resource · ? fence
INSERT INTO latchkit_operation (name, resource, fence) VALUES (?, ?, ?)
