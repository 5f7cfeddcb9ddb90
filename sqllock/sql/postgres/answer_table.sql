-- answer_table: one row for each request with a Record in the store of NewAnswers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name    bytea PRIMARY KEY,
	run     bytea NOT NULL,
	open    smallint NOT NULL,
	answer  bytea,
	expires bigint NOT NULL
)
