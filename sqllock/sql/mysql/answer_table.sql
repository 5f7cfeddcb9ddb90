-- answer_table: one row for each request with a Record in the store of NewAnswers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name    VARBINARY(512) NOT NULL PRIMARY KEY,
	run     VARBINARY(255) NOT NULL,
	open    TINYINT NOT NULL,
	answer  LONGBLOB,
	expires BIGINT NOT NULL
) ENGINE = InnoDB
