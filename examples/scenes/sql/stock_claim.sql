-- The first statement of each holder shows its fence to the row. From here on, the row refuses
-- earlier holders.
UPDATE scenes_stock SET fence = $2 WHERE sku = $1 AND fence <= $2
