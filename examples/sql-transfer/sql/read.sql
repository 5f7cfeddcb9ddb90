SELECT balance FROM accounts WHERE name = ?
