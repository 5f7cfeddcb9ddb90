-- The stock of each article, and its orders. SQLite and PostgreSQL both accept these
-- statements.
CREATE TABLE IF NOT EXISTS scenes_stock (
	sku       TEXT PRIMARY KEY,
	left_over INTEGER NOT NULL,
	fence     BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS scenes_orders (
	sku   TEXT NOT NULL,
	buyer INTEGER NOT NULL
);
