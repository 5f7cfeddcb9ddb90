-- A real shop would write "left_over = left_over - 1 WHERE left_over > 0" and need no lock for
-- that. It stands here for whatever cannot be said in one statement: the new value was worked out
-- by the program, from what it had read.
UPDATE flashsale_stock SET left_over = $2 WHERE sku = $1
