DELETE FROM scenes_stock WHERE sku = $1
