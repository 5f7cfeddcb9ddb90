package otellock

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"unicode"

	"github.com/latchkit/latchkit/locker"
)

func TestEverySentinelHasAnErrorType(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../locker/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]bool)
	for _, k := range kinds {
		named[k.name] = true
	}
	seen := 0
	for ident := range file.Scope.Objects {
		if sentinel, ok := strings.CutPrefix(ident, "Err"); ok && file.Scope.Objects[ident].Kind == ast.Var {
			seen++
			if !named[snake(sentinel)] {
				t.Errorf("locker.%s has no error.type; add %q to kinds, where its order says what wins", ident, snake(sentinel))
			}
		}
	}
	if seen < 13 {
		t.Errorf("found only %d sentinels in locker/errors.go; do they stand elsewhere now?", seen)
	}
}

func TestEachKindOfErrorIsFoundBehindWrappers(t *testing.T) {
	for _, k := range kinds {
		err := &locker.Error{Op: locker.OpAcquire, Key: "order:1", Err: fmt.Errorf("because: %w", k.sentinel)}
		if got := errorType(locker.Outcome{Result: locker.ResultError, Err: err}); got != k.name {
			t.Errorf("%v is %q, want %q", k.sentinel, got, k.name)
		}
	}
	for own, want := range map[named]string{"commit_unknown": "commit_unknown", other: "deadline_exceeded"} {
		err := fmt.Errorf("%w, because: %w", own, context.DeadlineExceeded)
		if got := errorType(locker.Outcome{Result: locker.ResultError, Err: err}); got != want {
			t.Errorf("an error that names itself %q is %q, want %q", own, got, want)
		}
	}
	if got := errorType(locker.Outcome{Result: locker.ResultError, Err: errors.New("order:42 is odd")}); got != other {
		t.Errorf("an error without a sentinel is %q, want %q", got, other)
	}
}

// named is an error that names its own type.
type named string

func (n named) Error() string     { return "an error" }
func (n named) ErrorType() string { return string(n) }

func snake(camel string) string {
	var b strings.Builder
	for i, r := range camel {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
