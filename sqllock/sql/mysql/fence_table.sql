-- fence_table: one row for each resource that was ever locked: the newest fence that has claimed
-- it, and whose it was. The row of the resource '' is the floor of PurgeFences: no fence up to it
-- is claimed any more.
-- VARBINARY, because a collation may take two resources for one.
CREATE TABLE IF NOT EXISTS latchkit_fence (
	resource   VARBINARY(512) NOT NULL PRIMARY KEY,
	fence      BIGINT NOT NULL,
	owner      VARBINARY(64) NOT NULL,
	claimed_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
) ENGINE = InnoDB
