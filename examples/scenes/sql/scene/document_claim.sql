-- The first statement of each holder shows its fence to the row. From here on, the row refuses
-- earlier holders.
UPDATE scenes_documents SET fence = $1 WHERE run = $2 AND mode = $3 AND fence <= $1
