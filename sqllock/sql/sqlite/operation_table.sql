-- operation_table: one row for each operation of Handle.Operation that was committed.
CREATE TABLE IF NOT EXISTS latchkit_operation (
	name     TEXT NOT NULL PRIMARY KEY,
	resource TEXT NOT NULL,
	fence    INTEGER NOT NULL,
	done_at  TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)
