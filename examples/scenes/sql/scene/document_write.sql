-- A write without a fence: the last writer wins, whatever it has read.
UPDATE scenes_documents SET version = $1, writer = $2 WHERE run = $3 AND mode = $4
