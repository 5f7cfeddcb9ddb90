-- limit: makes the server hang up on a connection that is silent for this many seconds, and so roll its transaction back,
-- unless its own bound is shorter. It holds for the session, so restore follows. MySQL and MariaDB have no other bound in common.
SET @latchkit_wait_timeout = @@SESSION.wait_timeout, SESSION wait_timeout = LEAST(@@SESSION.wait_timeout, %d)
