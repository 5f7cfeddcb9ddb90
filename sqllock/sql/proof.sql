-- proof: fails if the savepoint that the statement open has set is gone. A savepoint ends with its
-- transaction.
RELEASE SAVEPOINT latchkit_open
