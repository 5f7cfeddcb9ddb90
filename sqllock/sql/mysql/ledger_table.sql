-- ledger_table: one row for each transaction that was committed, and a row with fence 0 for each
-- that was given up. Operations begin with their time, so the oldest come first.
CREATE TABLE IF NOT EXISTS latchkit_ledger (
	op       VARBINARY(26) NOT NULL PRIMARY KEY,
	resource VARBINARY(512) NOT NULL,
	fence    BIGINT NOT NULL
) ENGINE = InnoDB
