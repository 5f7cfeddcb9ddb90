-- session: makes the server hang up on a connection that is silent for this many seconds, and so roll its transaction back,
-- unless its own bound is shorter: MySQL and MariaDB have no other bound in common. Nothing is committed by itself: what
-- follows a transaction that a deadlock has ended must not be. Both hold for the session, so restore follows.
SET @latchkit_wait_timeout = @@SESSION.wait_timeout, SESSION wait_timeout = LEAST(@@SESSION.wait_timeout, %d),
	@latchkit_autocommit = @@SESSION.autocommit, SESSION autocommit = 0
