package locker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
)

// mute is a Locker without the method Check.
type mute struct{}

func (mute) Acquire(context.Context, locker.Rule) (*locker.Lease, error) {
	return nil, locker.ErrBusy
}

func TestCheckFindsRulesThatCanNeverBeGranted(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // there is no server, because Check sends nothing
	t.Cleanup(func() { _ = client.Close() })
	single, err := locker.New(client, locker.WithMaxTTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	readers, err := locker.NewReadWrite(client)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		l    locker.Locker
		rule locker.Rule
		want error
	}{
		"a rule without a key":     {single, locker.Rule{TTL: time.Second}, nil},
		"a key that is reserved":   {single, locker.Rule{Key: "latchkit:x"}, locker.ErrInvalidKey},
		"at most before at least":  {single, locker.Rule{KeepFor: 2 * time.Second, EndAfter: time.Second}, locker.ErrInvalidRule},
		"a TTL that is too short":  {single, locker.Rule{TTL: 1}, locker.ErrInvalidRule},
		"a TTL above WithMaxTTL":   {single, locker.Rule{TTL: time.Hour}, locker.ErrInvalidRule},
		"a wait of -2":             {single, locker.Rule{Wait: -2}, locker.ErrInvalidRule},
		"Shared without readers":   {single, locker.Rule{Mode: locker.Shared}, locker.ErrUnsupported},
		"Shared with readers":      {readers, locker.Rule{Mode: locker.Shared}, nil},
		"inside a Reentrant":       {locktest.Reentrant(t, single), locker.Rule{Mode: locker.Shared}, locker.ErrUnsupported},
		"a Locker that cannot say": {mute{}, locker.Rule{Mode: locker.Shared}, nil},
	} {
		if err := locker.Check(tc.l, tc.rule); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
