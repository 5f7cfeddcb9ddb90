-- restore: takes session back. It commits what is open, so a COMMIT or ROLLBACK precedes it.
SET SESSION wait_timeout = @latchkit_wait_timeout, SESSION autocommit = @latchkit_autocommit
