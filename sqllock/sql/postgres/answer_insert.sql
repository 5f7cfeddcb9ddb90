-- answer_insert: writes a Record. It fails if the key has a row already.
-- $1 key · $2 run · $3 open, 0 or 1 · $4 answer · $5 end of its lifetime in ms
INSERT INTO latchkit_answer (name, run, open, answer, expires) VALUES ($1, $2, $3, $4, $5)
