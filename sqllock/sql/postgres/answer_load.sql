-- answer_load: the Record of a key.
-- $1 key
SELECT run, open, answer, expires FROM latchkit_answer WHERE name = $1
