-- answer_forget: removes a Record in progress.
-- ? key · ? fence
DELETE FROM latchkit_answer WHERE name = ? AND fence = ? AND state = 1
