-- The tables of the scenes. A mode is "no lock", "SETNX + DEL" or "latchkit". The version of a
-- document grows by one with each write, so versions that are missing at the end were overwritten.
CREATE TABLE IF NOT EXISTS scenes_documents (
	run     TEXT NOT NULL,
	mode    TEXT NOT NULL,
	version INTEGER NOT NULL,
	body    INTEGER NOT NULL,
	writer  TEXT NOT NULL,
	fence   BIGINT NOT NULL DEFAULT 0,
	PRIMARY KEY (run, mode)
);
CREATE TABLE IF NOT EXISTS scenes_results (
	run    TEXT NOT NULL,
	mode   TEXT NOT NULL,
	who    TEXT NOT NULL,
	item   INTEGER NOT NULL,
	result TEXT NOT NULL
);
