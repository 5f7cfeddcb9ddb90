-- The title is the version, and the text is the body. Without a lock the fence is 0, and the row
-- refuses nobody.
UPDATE scenes_documents SET version = $1, body = $1, writer = $2, fence = $3 WHERE run = $4 AND mode = $5 AND fence <= $3
