package doors_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"github.com/robfig/cron/v3"
	"gorm.io/gorm"

	"github.com/latchkit/latchkit/contrib/cronlock"
	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/contrib/gocronlock"
	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/contrib/sqlxlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// The functions of contrib refuse nil as those of the root do.
func TestNilIsRefusedAtTheDoorsOfContrib(t *testing.T) {
	w := newWorld(t)
	doors := w.contribDoors()
	for name, fn := range doors {
		t.Run(name, func(t *testing.T) { w.knock(t, reflect.ValueOf(fn)) })
	}
	checkContribComplete(t, doors)
}

func (w *world) contribDoors() map[string]any {
	l := w.values[reflect.TypeFor[locker.Locker]()].Interface().(locker.Locker)
	postgres := sqllock.WithDialect(sqllock.Postgres)
	give(w, cron.New())
	give(w, new(gorm.DB))
	give(w, new(sqlx.DB))
	give[pgx.Tx](w, struct{ pgx.Tx }{})
	give[pgxlock.DB](w, struct{ pgxlock.DB }{})
	give(w, new(sqllock.Handle[*gorm.DB]))
	give(w, must(pgxlock.New(l, struct{ pgxlock.DB }{})))
	job := func(context.Context) error { return nil }
	return map[string]any{
		"cronlock.Once": func(c *cron.Cron, l locker.Locker, job func(context.Context) error) error {
			_, err := cronlock.Once(c, l, "@daily", "report", job)
			return err
		},
		"cronlock.WithBase": func(ctx context.Context) error {
			_, err := cronlock.Once(cron.New(), l, "@daily", "report", job, cronlock.WithBase(ctx))
			return err
		},
		"echolock.New": echolock.New, "echolock.NewIdempotency": echolock.NewIdempotency,
		"echolock.MustNew": echolock.MustNew, "echolock.MustIdempotency": echolock.MustIdempotency, "echolock.FromRules": echolock.FromRules,
		"fiberlock.New": fiberlock.New, "fiberlock.NewIdempotency": fiberlock.NewIdempotency,
		"fiberlock.MustNew": fiberlock.MustNew, "fiberlock.MustIdempotency": fiberlock.MustIdempotency, "fiberlock.FromRules": fiberlock.FromRules,
		"gocronlock.NoOverlap":   gocronlock.NoOverlap,
		"gocronlock.PerInterval": gocronlock.PerInterval,
		"gocronlock.PerTick":     gocronlock.PerTick,
		"gormlock.New": func(db *gorm.DB) error {
			_, err := gormlock.New(l, db, postgres)
			return err
		},
		"gormlock.InTx": gormlock.InTx,
		"pgxlock.New":   func(db pgxlock.DB) error { _, err := pgxlock.New(l, db); return err }, "pgxlock.InTx": pgxlock.InTx,
		"sqlxlock.New": func(db *sqlx.DB) error {
			_, err := sqlxlock.New(l, db, postgres)
			return err
		},
	}
}

// openOfContrib are the functions that accept nil, or for which Go's own panic is the clear one.
var openOfContrib = map[string]string{
	"cronlock.WithLogger":     "nil is the Logger of slog",
	"gocronlock.NewElector":   "each run of a job says that the Leader is nil",
	"gocronlock.WhileLeading": "each run of a job says which of the two is nil",
	"gocronlock.WithOnLost":   "nil is no function",
	"echolock.FromContext":    lookup,
	"echolock.Guard.Validate": "a list without routes has none that is guarded",
	"fiberlock.Ctx":           lookup,
	"fiberlock.Guard.Handle":  "Fiber panics",
	"fiberlock.FromContext":   lookup,
}

// checkContribComplete checks that each exported function of contrib with an argument that can be
// nil is in doors or in openOfContrib. It reads the source.
func checkContribComplete(t *testing.T, doors map[string]any) {
	files, err := filepath.Glob("../../../contrib/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	known := make(map[string]bool)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() {
				continue
			}
			name := parsed.Name.Name + "."
			if f.Recv != nil {
				receiver := strings.TrimPrefix(textOf(set, f.Recv.List[0].Type), "*")
				if !ast.IsExported(receiver) {
					continue
				}
				name += receiver + "."
			}
			name += f.Name.Name
			known[name] = true
			if canBeNil.MatchString(textOf(set, f.Type.Params)) && doors[name] == nil && openOfContrib[name] == "" {
				t.Errorf("%s: an argument can be nil, so add the function to the table", name)
			}
		}
	}
	checkOpen(t, openOfContrib, known)
}

func textOf(set *token.FileSet, node ast.Node) string {
	var text strings.Builder
	_ = printer.Fprint(&text, set, node) // a Builder does not fail
	return text.String()
}
