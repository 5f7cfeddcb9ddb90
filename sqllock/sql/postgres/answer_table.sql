-- answer_table: one row for each request with a Record in Answers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name        bytea PRIMARY KEY,
	fingerprint bytea NOT NULL,
	fence       bigint NOT NULL,
	state       smallint NOT NULL,
	response    bytea,
	expires     bigint NOT NULL
)
