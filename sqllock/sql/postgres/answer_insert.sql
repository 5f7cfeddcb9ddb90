-- answer_insert: writes a Record. It fails if the key has a Record already.
-- $1 key · $2 fingerprint · $3 fence · $4 state · $5 response · $6 end of its lifetime in ms
INSERT INTO latchkit_answer (name, fingerprint, fence, state, response, expires) VALUES ($1, $2, $3, $4, $5, $6)
