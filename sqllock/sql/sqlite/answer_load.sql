-- answer_load: the Record of a key.
-- ? key
SELECT fingerprint, fence, state, response, expires FROM latchkit_answer WHERE name = ?
