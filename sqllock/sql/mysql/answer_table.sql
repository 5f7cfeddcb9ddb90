-- answer_table: one row for each request with a Record in Answers.
CREATE TABLE IF NOT EXISTS latchkit_answer (
	name        VARBINARY(512) NOT NULL PRIMARY KEY,
	fingerprint VARBINARY(32) NOT NULL,
	fence       BIGINT NOT NULL,
	state       SMALLINT NOT NULL,
	response    LONGBLOB,
	expires     BIGINT NOT NULL
) ENGINE = InnoDB
