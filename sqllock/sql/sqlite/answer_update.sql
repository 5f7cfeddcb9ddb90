-- answer_update: replaces a Record that is locked.
-- ? fence · ? state · ? response · ? end of its lifetime in ms · ? key
UPDATE latchkit_answer SET fence = ?, state = ?, response = ?, expires = ? WHERE name = ?
