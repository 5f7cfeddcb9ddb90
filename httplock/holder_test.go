package httplock_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The Locker's error names the holder, for operators. No client may see the name, also not in the
// text of a Problem, which a program may send.
func TestAReplyDoesNotNameTheHolder(t *testing.T) {
	const holder = "report@pod-7f9c:1"
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithMetadata(func(context.Context) string { return holder }), locker.WithMaxWaiters(1))
	var seen []*httplock.Problem
	wait := httplock.WithWait(locker.NoWait)
	for name, h := range map[string]http.Handler{
		"New":            httplock.MustNew(l, "order:42", wait, problems(&seen))(paid),
		"NewIdempotency": httplock.MustIdempotency(l, idempotency.NewMemory(), "shop", wait, problems(&seen))(paid),
	} {
		seen = nil
		key := map[string]string{"New": "order:42", "NewIdempotency": "idempotency:shop:k"}[name]
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		w := send(t.Context(), h, http.MethodPost, "/", "", "Idempotency-Key", "k")
		if len(seen) != 1 || seen[0].Code != httplock.CodeBusy || !strings.Contains(seen[0].Unwrap().Error(), holder) {
			t.Fatalf("%s: the Problems are %v, want a busy lock, whose error names the holder", name, seen)
		}
		if shown := fmt.Sprint(w.Code, w.Header(), w.Body, seen[0]); strings.Contains(shown, "report") || strings.Contains(shown, "7f9c") {
			t.Errorf("%s: the reply is %s", name, shown)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
