-- answer_insert: writes a Record. It fails if there is one.
-- ? key · ? fingerprint · ? fence · ? state · ? response · ? end of its lifetime in ms
INSERT INTO latchkit_answer (name, fingerprint, fence, state, response, expires) VALUES (?, ?, ?, ?, ?, ?)
