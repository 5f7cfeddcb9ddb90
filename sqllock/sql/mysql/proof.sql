-- proof: fails if the transaction that the statement open has marked is over: a savepoint ends with
-- its transaction.
RELEASE SAVEPOINT latchkit_open
