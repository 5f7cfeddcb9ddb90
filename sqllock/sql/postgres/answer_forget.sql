-- answer_forget: removes a Record in progress.
-- $1 key · $2 fence
DELETE FROM latchkit_answer WHERE name = $1 AND fence = $2 AND state = 1
