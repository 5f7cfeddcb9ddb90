INSERT INTO scenes_orders (sku, buyer) VALUES ($1, $2)
