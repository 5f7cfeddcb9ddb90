-- operation: marks the caller's operation as done. It fails where the operation is done already,
-- and waits while another transaction is about to do it.
-- $1 name · $2 resource · $3 fence
INSERT INTO latchkit_operation (name, resource, fence) VALUES ($1, $2, $3)
