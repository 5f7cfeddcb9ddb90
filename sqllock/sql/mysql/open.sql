-- open: marks the transaction for proof.
SAVEPOINT latchkit_open
