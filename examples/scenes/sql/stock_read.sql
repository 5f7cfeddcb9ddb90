SELECT left_over FROM scenes_stock WHERE sku = $1
