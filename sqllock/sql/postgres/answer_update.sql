-- answer_update: replaces a Record that is locked.
-- $1 fence · $2 state · $3 response · $4 end of its lifetime in ms · $5 key
UPDATE latchkit_answer SET fence = $1, state = $2, response = $3, expires = $4 WHERE name = $5
