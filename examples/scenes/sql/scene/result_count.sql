SELECT count(*), count(DISTINCT item) FROM scenes_results WHERE run = $1 AND mode = $2 AND result = $3
