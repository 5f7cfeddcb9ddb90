-- alone: lets one migration run at a time; IF NOT EXISTS alone fails when two sessions create the
-- same table.
SELECT pg_advisory_xact_lock(7233171921)
