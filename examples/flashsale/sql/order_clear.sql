DELETE FROM flashsale_orders WHERE sku = $1
