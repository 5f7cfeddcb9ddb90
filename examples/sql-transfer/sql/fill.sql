INSERT INTO accounts (name, balance) VALUES ('alice', 10000), ('bob', 10000)
