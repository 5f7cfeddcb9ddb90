-- fence_table: one row for each resource that was ever claimed, with the newest fence and
-- its owner. The row of the resource '' is the floor of Purge: claims with a fence up to the
-- floor are refused.
CREATE TABLE IF NOT EXISTS latchkit_fence (
	resource   TEXT NOT NULL PRIMARY KEY,
	fence      INTEGER NOT NULL,
	owner      TEXT NOT NULL,
	claimed_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)
