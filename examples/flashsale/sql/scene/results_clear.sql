DELETE FROM flashsale_results WHERE run = $1
