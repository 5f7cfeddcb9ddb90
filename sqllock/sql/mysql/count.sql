-- count: begins to count the claims that stand.
SET @latchkit_claims = 0
