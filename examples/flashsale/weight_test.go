package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// heaviest is how much source the sale may compile, the standard library included.
const heaviest = 18_000_000

// TestSaleCompilesQuickly keeps the first command of the README quick. On a machine that has
// compiled nothing yet, go run is silent until it has compiled all that the program imports.
func TestSaleCompilesQuickly(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{.Dir}} {{join .GoFiles \" \"}}", ".")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		for heavy, advice := range map[string]string{
			"modernc.org/sqlite":                         "stock.go stands for a database",
			"github.com/jackc/pgx":                       "stock.go stands for a database",
			"github.com/gin-gonic/gin":                   "httplock guards routes of net/http",
			"google.golang.org/grpc":                     "shops reach the stock over HTTP",
			"google.golang.org/protobuf":                 "shops reach the stock over HTTP",
			"go.opentelemetry.io/otel":                   "traces are shown by examples/scenes",
			"github.com/hibiken/asynq":                   "tasks are shown by examples/scenes",
			"github.com/latchkit/latchkit/internal/page": "the page is shown by examples/scenes",
		} {
			if words[0] == heavy || strings.HasPrefix(words[0], heavy+"/") {
				t.Errorf("the sale imports %s, which makes the first command of the README slow: %s", words[0], advice)
			}
		}
		for _, name := range words[2:] {
			info, err := os.Stat(filepath.Join(words[1], name))
			if err != nil {
				t.Fatal(err)
			}
			total += info.Size()
		}
	}
	if total > heaviest {
		t.Errorf("the sale compiles %.1f MB of source, and at most %.1f MB are wanted: find what a package imports with `go list -deps ./examples/flashsale`, and go without it",
			float64(total)/1e6, heaviest/1e6)
	}
}
