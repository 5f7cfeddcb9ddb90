-- answer_table: one row for each request with a Record in the store of NewAnswers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name    BLOB NOT NULL PRIMARY KEY,
	run     BLOB NOT NULL,
	open    INTEGER NOT NULL,
	answer  BLOB,
	expires INTEGER NOT NULL
)
