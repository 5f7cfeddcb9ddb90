DELETE FROM flashsale_stock WHERE sku = $1
