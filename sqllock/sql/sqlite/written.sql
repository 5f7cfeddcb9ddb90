-- written: how many rows this connection has changed so far. It is needed because SQLite does not
-- refuse writes in read-only transactions.
SELECT total_changes()
