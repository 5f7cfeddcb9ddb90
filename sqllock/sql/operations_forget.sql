-- operations_forget: removes operations of Handle.Operation older than an age.
-- ? age in s
DELETE FROM latchkit_operation WHERE done_at < ago(?)
