-- answer_lock: the Record of a key, which stays locked until the transaction ends.
-- $1 key
SELECT run, open, answer, expires FROM latchkit_answer WHERE name = $1 FOR UPDATE
