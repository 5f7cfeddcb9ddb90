-- answer_purge: removes the Records that have expired.
-- ? now in ms
DELETE FROM latchkit_answer WHERE expires <= ?
