INSERT INTO scenes_stock (sku, left_over) VALUES ($1, $2)
