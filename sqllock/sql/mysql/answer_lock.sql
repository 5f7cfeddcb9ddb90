-- answer_lock: the Record of a key, which stays locked until the transaction ends.
-- ? key
SELECT fingerprint, fence, state, response, expires FROM latchkit_answer WHERE name = ? FOR UPDATE
