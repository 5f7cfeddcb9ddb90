-- writes: whether the transaction may write.
SELECT current_setting('transaction_read_only') = 'off'
