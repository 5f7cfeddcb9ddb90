-- answer_remove: removes a Record that is locked.
-- ? key
DELETE FROM latchkit_answer WHERE name = ?
