-- ledger_table: one row for each transaction that was committed, and a row with fence 0 for each
-- transaction that was given up. The name of an operation begins with its time, so the oldest
-- operations come first.
CREATE TABLE IF NOT EXISTS latchkit_ledger (
	op       VARBINARY(26) NOT NULL PRIMARY KEY,
	resource VARBINARY(512) NOT NULL,
	fence    BIGINT NOT NULL
) ENGINE = InnoDB
