SELECT count(*) FROM scenes_orders WHERE sku = $1
