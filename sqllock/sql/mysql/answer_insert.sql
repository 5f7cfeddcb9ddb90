-- answer_insert: writes a Record. It fails if the key has a Record already.
-- ? key · ? fingerprint · ? fence · ? state · ? response · ? end of its lifetime in ms
INSERT INTO latchkit_answer (name, fingerprint, fence, state, response, expires) VALUES (?, ?, ?, ?, ?, ?)
