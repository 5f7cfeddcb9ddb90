-- open: sets the mark that the statement proof checks.
SAVEPOINT latchkit_open
