-- counted: how many claims stand.
SELECT @latchkit_claims
