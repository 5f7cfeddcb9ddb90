-- answer_table: one row for each request with a Record in Answers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name    bytea PRIMARY KEY,
	run     bytea NOT NULL,
	open    smallint NOT NULL,
	answer  bytea,
	expires bigint NOT NULL
)
