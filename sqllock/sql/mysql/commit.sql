-- commit: commits in a block, where nothing but text can.
COMMIT
