INSERT INTO scenes_results (run, mode, who, item, result) VALUES ($1, $2, $3, $4, $5)
