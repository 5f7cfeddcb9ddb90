INSERT INTO flashsale_orders (sku, buyer) VALUES ($1, $2)
