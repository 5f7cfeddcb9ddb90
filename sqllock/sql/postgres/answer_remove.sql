-- answer_remove: removes a Record that is locked.
-- $1 key
DELETE FROM latchkit_answer WHERE name = $1
