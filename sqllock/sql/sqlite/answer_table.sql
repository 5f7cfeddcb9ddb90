-- answer_table: one row for each request with a Record in Answers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name        BLOB NOT NULL PRIMARY KEY,
	fingerprint BLOB NOT NULL,
	fence       INTEGER NOT NULL,
	state       INTEGER NOT NULL,
	response    BLOB,
	expires     INTEGER NOT NULL
)
