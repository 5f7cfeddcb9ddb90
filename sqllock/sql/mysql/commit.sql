-- commit: commits in a block, where only the text of a statement can commit.
COMMIT
