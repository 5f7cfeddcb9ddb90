-- writes: changes no row, and fails with error 1792 if the transaction is read-only. No variable of
-- the session shows this for a transaction that began with START TRANSACTION READ ONLY.
UPDATE latchkit_fence SET fence = fence WHERE FALSE
