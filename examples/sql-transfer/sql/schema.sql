-- What each account has, in cents.
CREATE TABLE accounts (
	name    TEXT PRIMARY KEY,
	balance INTEGER NOT NULL
)
