-- answer_load: the Record of a key.
-- ? key
SELECT run, open, answer, expires FROM latchkit_answer WHERE name = ?
