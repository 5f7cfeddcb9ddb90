SELECT body, fence FROM flashsale_documents WHERE run = $1 AND mode = $2
