-- fence_table: one row for each resource that was ever locked: the newest fence that has claimed
-- it, and whose it was. The row of the resource '' is the floor of PurgeFences: no fence up to it
-- is claimed any more.
CREATE TABLE IF NOT EXISTS latchkit_fence (
	resource   TEXT NOT NULL PRIMARY KEY,
	fence      INTEGER NOT NULL,
	owner      TEXT NOT NULL,
	claimed_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)
