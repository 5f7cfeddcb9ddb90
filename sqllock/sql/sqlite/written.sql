-- written: how many rows this connection has changed so far. SQLite has no transactions that only
-- read.
SELECT total_changes()
