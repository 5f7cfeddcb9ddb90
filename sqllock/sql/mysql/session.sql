-- session: changes two settings of the session; the statement restore takes the changes back.
-- By the setting wait_timeout, the server closes a connection that is idle for longer, and so rolls
-- its transaction back. If the server's own limit is shorter, that limit stays. MySQL and MariaDB
-- have no other limit for idle transactions in common. LEAST returns a DECIMAL here, and MySQL
-- takes only an integer for wait_timeout.
-- With the setting autocommit = 0, statements after a deadlock has ended the transaction are not
-- committed.
-- ? idle limit in s
SET @latchkit_wait_timeout = @@SESSION.wait_timeout, SESSION wait_timeout = CAST(LEAST(@@SESSION.wait_timeout, ?) AS UNSIGNED),
	@latchkit_autocommit = @@SESSION.autocommit, SESSION autocommit = 0
