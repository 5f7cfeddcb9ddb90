package recipes_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/latchkit/latchkit/examples/recipes"
)

// migrations are migrations that return an error if they run twice. They take so long that
// without a lock the runs of two pods would overlap.
var migrations = fstest.MapFS{
	"00001_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (id INTEGER);\nINSERT INTO orders VALUES (1);\n")},
	"00002_items.sql":  {Data: []byte("-- +goose Up\nCREATE TABLE items (id INTEGER);\nINSERT INTO orders VALUES (2);\n")},
}

// Two pods start at the same time, each of them twice, with the real goose and one database.
func TestMigrationsRunOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.db")
	together(newPods(t), 2, func(p pod) {
		db := database(t, file)
		defer db.Close()
		if err := recipes.Migrate(t.Context(), p.l, db, goose.DialectSQLite3, migrations); err != nil {
			t.Error(err)
		}
	})
	db := database(t, file)
	defer db.Close()
	var orders, versions int
	if err := db.QueryRow("SELECT (SELECT count(*) FROM orders), (SELECT max(version_id) FROM goose_db_version)").Scan(&orders, &versions); err != nil {
		t.Fatal(err)
	}
	if orders != 2 || versions != 2 {
		t.Errorf("%d orders, version %d", orders, versions)
	}
}

func database(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Error(err)
	}
	return db
}
