INSERT INTO scenes_documents (run, mode, version, body, writer) VALUES ($1, $2, 0, 0, 'nobody')
