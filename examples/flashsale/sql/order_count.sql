SELECT count(*) FROM flashsale_orders WHERE sku = $1
