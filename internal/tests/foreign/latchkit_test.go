package foreign

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/polling"
)

// kinds are the kinds of Lockers that can share one server with other libraries.
var kinds = []string{"NewSingle", "NewReadWrite", "polling.New"}

// newLocker makes a Locker of a kind. The kind "migrating" is a NewSingle with the options of
// docs/migrating.md.
func newLocker(kind string, cs []*redis.Client) (*locker.Engine, error) {
	all := make([]locker.Client, len(cs))
	for i, c := range cs {
		all[i] = c
	}
	switch kind {
	case "NewSingle":
		return locker.New(cs[0])
	case "migrating":
		return locker.New(cs[0], locker.WithoutQueue())
	case "NewReadWrite":
		return locker.NewReadWrite(cs[0])
	case "polling.New":
		return polling.New(redislock.New(cs[0]))
	case "NewRedlock":
		return locker.NewRedlock(all)
	}
	return nil, fmt.Errorf("there is no kind %q", kind)
}

// openLocker makes a Locker of a kind on some servers. The end of the test closes it.
func openLocker(t *testing.T, kind string, servers []*redistest.Server) *locker.Engine {
	t.Helper()
	l, err := newLocker(kind, clientsOf(t, servers))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

func clientsOf(t *testing.T, servers []*redistest.Server) []*redis.Client {
	t.Helper()
	all := make([]*redis.Client, len(servers))
	for i, s := range servers {
		all[i] = s.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	}
	return all
}

// enroll makes the servers of a quorum vote from the start.
func enroll(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	var all []locker.Client
	for _, c := range clientsOf(t, servers) {
		all = append(all, c)
	}
	if err := locker.EnrollRedlock(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

// latchkitPeer is a process that locks with latchkit, and that a test can kill. Its arguments are
// the kind of Locker and the ports.
var latchkitPeer = proc.Register("latchkit", func(args []string) {
	l, err := newLatchkit(args[0], args[1:])
	if err != nil {
		fail(err)
	}
	fmt.Println("ready latchkit")
	answerWith(l, args[1:])
})

// latches are the locks of latchkit. Unlike other libraries, latchkit renews its leases itself.
type latches struct {
	locker *locker.Engine
	held   map[string]*locker.Lease
}

func newLatchkit(kind string, ports []string) (latches, error) {
	l, err := newLocker(kind, clients(ports))
	return latches{l, make(map[string]*locker.Lease)}, err
}

func (l latches) lock(ctx context.Context, key string, ttl time.Duration, patient bool) error {
	rule := locker.Rule{Key: key, TTL: ttl}
	if !patient {
		rule.Wait = locker.NoWait
	}
	lease, err := l.locker.Acquire(ctx, rule)
	if errors.Is(err, locker.ErrBusy) {
		return errBusy
	}
	l.held[key] = lease
	return err
}

func (l latches) extend(ctx context.Context, key string, ttl time.Duration) error {
	return asErrLost(l.held[key].Extend(ctx, ttl))
}

func (l latches) unlock(ctx context.Context, key string) error {
	return asErrLost(l.held[key].Release(ctx))
}

func asErrLost(err error) error {
	if errors.Is(err, locker.ErrLost) {
		return errLost
	}
	return err
}
