package calls

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// obedient is a Store that answers after a second, or when its context ends.
type obedient struct{ store.Store }

func (obedient) Acquire(ctx context.Context, _ store.Claim) (store.Grant, error) {
	select {
	case <-ctx.Done():
		return store.Grant{}, ctx.Err()
	case <-time.After(Timeout / 2):
		return store.Grant{State: store.Granted}, nil
	}
}

// The caller that has begun a step may leave, and another one takes the answer.
func TestAStepDoesNotEndWithTheContextOfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := Wrap(obedient{}, nil, new(Pool), nil).Begin(ctx, Acquire, store.Claim{}, nil)
		cancel()
		if g, err := Await(f); err != nil || g.State != store.Granted {
			t.Errorf("%v, %v", g, err)
		}
	})
}
