-- proof: fails unless the transaction that open has marked is open: a savepoint ends with its
-- transaction.
RELEASE SAVEPOINT latchkit_open
