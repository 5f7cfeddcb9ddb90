-- answer_load: the Record of a key.
-- $1 key
SELECT fingerprint, fence, state, response, expires FROM latchkit_answer WHERE name = $1
