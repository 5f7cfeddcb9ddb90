-- restore: takes back the changes that the statement session made. This commits an open
-- transaction, so a COMMIT or ROLLBACK must come first.
SET SESSION wait_timeout = @latchkit_wait_timeout, SESSION autocommit = @latchkit_autocommit
