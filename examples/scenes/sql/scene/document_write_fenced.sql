-- A write with a fence: the row keeps the largest fence, and refuses a writer with a smaller one.
UPDATE scenes_documents SET version = $1, writer = $2, fence = $3 WHERE run = $4 AND mode = $5 AND fence <= $3
