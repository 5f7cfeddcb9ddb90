SELECT body, fence FROM scenes_documents WHERE run = $1 AND mode = $2
