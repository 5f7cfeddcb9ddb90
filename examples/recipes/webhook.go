package recipes

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Webhook handles each event once, although the sender repeats an event until it gets a 200. Each
// repetition may reach another pod. The function event checks the signature of the request, and
// then reads the event's id.
func Webhook(l locker.Locker, event func(*http.Request) (id string, err error), handle func(context.Context, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := event(r)
		if err != nil {
			http.Error(w, "not an event of the sender", http.StatusBadRequest)
			return
		}
		err = locker.Run(r.Context(), l, locker.Rule{
			Key:     "webhook:" + id,
			Wait:    locker.NoWait,
			OnceFor: 72 * time.Hour, // longer than the sender repeats an event
		}, func(ctx context.Context) error { return handle(ctx, r) })
		switch {
		case err == nil, errors.Is(err, locker.ErrDone):
			w.WriteHeader(http.StatusOK)
		case errors.Is(err, locker.ErrBusy): // another pod handles the event now; it may still fail
			http.Error(w, "the event is being handled", http.StatusConflict)
		default: // not handled, or handled and not marked: the sender's next attempt handles it (again)
			http.Error(w, "the event was not handled, or handled and not marked", http.StatusInternalServerError)
		}
	})
}
