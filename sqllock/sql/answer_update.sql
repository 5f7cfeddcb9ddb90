-- answer_update: replaces a Record that is locked.
-- ? run · ? open, 0 or 1 · ? answer · ? end of its lifetime in ms · ? key
UPDATE latchkit_answer SET run = ?, open = ?, answer = ?, expires = ? WHERE name = ?
