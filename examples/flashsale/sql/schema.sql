-- What is left of each article, and who bought it. Both SQLite and PostgreSQL understand this.
CREATE TABLE IF NOT EXISTS flashsale_stock (
	sku  TEXT PRIMARY KEY,
	left_over INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS flashsale_orders (
	sku   TEXT NOT NULL,
	buyer INTEGER NOT NULL
);
