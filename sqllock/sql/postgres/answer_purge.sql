-- answer_purge: removes the Records that have expired.
-- $1 now in ms
DELETE FROM latchkit_answer WHERE expires <= $1
