UPDATE flashsale_documents SET body = $1 WHERE run = $2 AND mode = $3
