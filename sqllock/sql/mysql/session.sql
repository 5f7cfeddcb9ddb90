-- session: makes the server close a connection that is silent for this many seconds, and so roll
-- its transaction back, unless the server's own bound is shorter: MySQL and MariaDB have no other
-- bound in common. Nothing is committed but by COMMIT: what follows a transaction that a deadlock
-- has ended must not be. Both settings hold for the session, so restore follows.
-- ? idle limit in s
SET @latchkit_wait_timeout = @@SESSION.wait_timeout, SESSION wait_timeout = LEAST(@@SESSION.wait_timeout, ?),
	@latchkit_autocommit = @@SESSION.autocommit, SESSION autocommit = 0
