UPDATE accounts SET balance = ? WHERE name = ?
