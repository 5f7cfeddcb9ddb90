-- answer_remove: removes a Record that has expired.
-- $1 key · $2 now in ms
DELETE FROM latchkit_answer WHERE name = $1 AND expires <= $2
