DELETE FROM scenes_orders WHERE sku = $1
