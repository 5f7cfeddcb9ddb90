-- written: how many rows this connection has changed so far. SQLite has no read-only
-- transactions.
SELECT total_changes()
