DELETE FROM scenes_results WHERE run = $1
