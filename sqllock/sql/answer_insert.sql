-- answer_insert: writes a Record. It fails if the key has a row already.
-- ? key · ? run · ? open, 0 or 1 · ? answer · ? end of its lifetime in ms
INSERT INTO latchkit_answer (name, run, open, answer, expires) VALUES (?, ?, ?, ?, ?)
