-- alone: lets one migration run at a time. Otherwise CREATE TABLE IF NOT EXISTS fails when two
-- sessions create the same table at the same time.
SELECT pg_advisory_xact_lock(7233171921)
