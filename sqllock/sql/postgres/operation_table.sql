-- operation_table: one row for each operation of Handle.Operation that was committed.
CREATE TABLE IF NOT EXISTS latchkit_operation (
	name     text COLLATE "C" PRIMARY KEY,
	resource text NOT NULL,
	fence    bigint NOT NULL,
	done_at  timestamptz NOT NULL DEFAULT now()
)
