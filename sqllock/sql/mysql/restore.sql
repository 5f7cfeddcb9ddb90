-- restore: takes session back. It commits what is open, so nothing may be.
SET SESSION wait_timeout = @latchkit_wait_timeout, SESSION autocommit = @latchkit_autocommit
