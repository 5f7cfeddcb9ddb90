DELETE FROM flashsale_documents WHERE run = $1
