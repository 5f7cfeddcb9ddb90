-- ledger_table: one row for each transaction that was committed, and a row with fence 0 for each
-- that was given up. Operations begin with their time, so the oldest come first.
CREATE TABLE IF NOT EXISTS latchkit_ledger (
	op       text COLLATE "C" PRIMARY KEY,
	resource text NOT NULL,
	fence    bigint NOT NULL
)
