package httplock

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

type waitedKey struct{}

// Waited returns how long the request of ctx has waited for its lock. If the request has several
// locks, Waited returns the wait for the innermost lock. Waited is for logs and traces.
func Waited(ctx context.Context) (wait time.Duration, locked bool) {
	p, ok := ctx.Value(waitedKey{}).(*pace)
	if !ok {
		return 0, false
	}
	return p.waited, true
}

// showWait adds the header Server-Timing to the response if the request has waited for at least 1
// ms. Browsers show that header.
func showWait(wait time.Duration, header http.Header) {
	if wait >= time.Millisecond {
		ms := strconv.FormatFloat(float64(wait)/float64(time.Millisecond), 'f', 1, 64)
		header.Add("Server-Timing", "lock;dur="+ms)
	}
}
