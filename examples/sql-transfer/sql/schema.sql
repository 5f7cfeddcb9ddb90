-- The balance of each account, in cents.
CREATE TABLE accounts (
	name    TEXT PRIMARY KEY,
	balance INTEGER NOT NULL
)
