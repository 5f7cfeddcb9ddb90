DELETE FROM scenes_documents WHERE run = $1
