-- answer_remove: removes a Record that has expired.
-- ? key · ? now in ms
DELETE FROM latchkit_answer WHERE name = ? AND expires <= ?
