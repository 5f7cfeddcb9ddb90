-- answer_update: replaces a Record that is locked.
-- $1 run · $2 open, 0 or 1 · $3 answer · $4 end of its lifetime in ms · $5 key
UPDATE latchkit_answer SET run = $1, open = $2, answer = $3, expires = $4 WHERE name = $5
