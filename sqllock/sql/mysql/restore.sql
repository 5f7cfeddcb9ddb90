-- restore: takes limit back.
SET SESSION wait_timeout = @latchkit_wait_timeout
