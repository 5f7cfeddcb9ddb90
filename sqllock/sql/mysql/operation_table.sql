-- operation_table: one row for each operation of Handle.Operation that was committed.
CREATE TABLE IF NOT EXISTS latchkit_operation (
	name     VARBINARY(512) NOT NULL PRIMARY KEY,
	resource VARBINARY(512) NOT NULL,
	fence    BIGINT NOT NULL,
	done_at  TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
) ENGINE = InnoDB
