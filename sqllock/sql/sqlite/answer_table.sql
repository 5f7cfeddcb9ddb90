-- answer_table: one row for each request with a Record in Answers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name    BLOB NOT NULL PRIMARY KEY,
	run     BLOB NOT NULL,
	open    INTEGER NOT NULL,
	answer  BLOB,
	expires INTEGER NOT NULL
)
