-- proof: fails with a division by zero if the mark of this transaction is missing. The statements
-- claim, claim_one and compare set the mark. A mark ends with its transaction, by COMMIT or
-- ROLLBACK.
-- $1 operation
SELECT 1 / (current_setting('latchkit.op', true) IS NOT DISTINCT FROM $1::text)::int
