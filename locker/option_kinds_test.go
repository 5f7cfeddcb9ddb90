package locker_test

import (
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
)

// If a constructor cannot use an option, it does not accept the option's type.
func TestAnOptionSuitsOnlyTheLockersThatUseIt(t *testing.T) {
	t.Parallel()
	type kinds struct{ any, single, quorum bool }
	for name, c := range map[string]struct {
		option any
		want   kinds
	}{
		"WithTTL":         {locker.WithTTL(time.Second), kinds{true, true, true}},
		"WithOptions":     {locker.WithOptions(), kinds{true, true, true}},
		"WithObserver":    {locker.WithObserver(nil), kinds{true, true, true}},
		"WithReplicaAck":  {locker.WithReplicaAck(1, 1), kinds{single: true}},
		"WithNodeTimeout": {locker.WithNodeTimeout(1), kinds{quorum: true}},
	} {
		var got kinds
		_, got.any = c.option.(locker.Option)
		_, got.single = c.option.(locker.SingleOption)
		_, got.quorum = c.option.(locker.QuorumOption)
		if got != c.want {
			t.Errorf("%s is %+v, want %+v", name, got, c.want)
		}
	}
}

func TestWithOptionsIsAllOfThem(t *testing.T) {
	t.Parallel()
	one := locktest.DeadServer(t)
	if _, err := locker.New(one, locker.WithOptions(locker.WithTTL(time.Minute), locker.WithMaxTTL(time.Second))); err == nil {
		t.Error("both options together are refused, and were taken")
	}
}
