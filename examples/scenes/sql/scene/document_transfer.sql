-- The two balances of the scene with transfers are the version and the body.
UPDATE scenes_documents SET version = $1, body = $2, writer = $3 WHERE run = $4 AND mode = $5
