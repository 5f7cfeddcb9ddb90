-- proof: fails unless the transaction that open has marked is still open: a savepoint ends with its
-- transaction.
RELEASE SAVEPOINT latchkit_open
