-- answer_lock: the Record of a key, which stays locked until the transaction ends.
-- ? key
SELECT run, open, answer, expires FROM latchkit_answer WHERE name = ? FOR UPDATE
