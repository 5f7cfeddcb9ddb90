SELECT left_over FROM flashsale_stock WHERE sku = $1
