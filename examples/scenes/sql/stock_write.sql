-- A real shop would write "left_over = left_over - 1 WHERE left_over > 0", which needs no lock.
-- This statement stands for work that one statement cannot express: the program has computed the
-- new value from an older read. Without a lock the fence is 0, and the row refuses nobody.
UPDATE scenes_stock SET left_over = $2, fence = $3 WHERE sku = $1 AND fence <= $3
