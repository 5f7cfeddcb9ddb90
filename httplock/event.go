package httplock

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// requestObserver is a Locker whose Observer counts requests. Every Engine is a requestObserver.
type requestObserver interface {
	ObserveRequest(ctx context.Context, e locker.RequestEvent)
}

// These are the results of requests without a Problem.
const (
	eventAcquired  = "acquired"
	eventReplayed  = "replayed"
	eventUnguarded = "unguarded"
)

// event reports the result of r's lock to the Locker's Observer.
func (m *middleware) event(r *http.Request, result string, waited time.Duration) {
	if m.events != nil {
		m.events.ObserveRequest(r.Context(), locker.RequestEvent{
			Name: cmp.Or(m.name, m.template.Name()), Result: result, Waited: waited,
		})
	}
}
