-- fence_table: one row for each resource that was ever claimed, with the newest fence and
-- its owner. The row of the resource '' is the floor of Purge: claims with a fence up to the
-- floor are refused.
CREATE TABLE IF NOT EXISTS latchkit_fence (
	resource   text COLLATE "C" PRIMARY KEY,
	fence      bigint NOT NULL,
	owner      text NOT NULL,
	claimed_at timestamptz NOT NULL DEFAULT now()
)
