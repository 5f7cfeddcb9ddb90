-- commit: commits inside a block, where the driver cannot commit by its own method.
COMMIT
