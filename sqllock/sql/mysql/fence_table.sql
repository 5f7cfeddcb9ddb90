-- fence_table: one row for each resource that was ever claimed, with the newest fence and
-- its owner. The row of the resource '' is the floor of Purge: claims with a fence up to the
-- floor are refused.
-- The column resource is VARBINARY, because a collation may treat two resources as equal.
CREATE TABLE IF NOT EXISTS latchkit_fence (
	resource   VARBINARY(512) NOT NULL PRIMARY KEY,
	fence      BIGINT NOT NULL,
	owner      VARBINARY(64) NOT NULL,
	claimed_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
) ENGINE = InnoDB
