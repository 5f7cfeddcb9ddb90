package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// lock is the state of a key, as an operator sees it.
type lock struct {
	key string
	locker.Info
	age time.Duration // how long ago the key was granted; 0: unknown
}

// state returns one word for the kind of holder.
func (l lock) state() string {
	switch {
	case !l.Held:
		return "free"
	case len(l.Permits) > 0:
		return "permits"
	case l.Kept:
		return "kept"
	case l.Foreign:
		return "foreign"
	case l.Mode == locker.Shared:
		return "shared"
	}
	return "exclusive"
}

// looker reads the state of locks from the servers.
type looker struct {
	engine *locker.Engine
	// a Locker of NewSemaphore, which also reads permits; nil on a quorum, which has no permits
	permits *locker.Engine
	// how far the server's clock, by which Info.Since was set, is ahead of this machine's clock
	clockOffset time.Duration
	clients     clients // closed with the looker; nil: another function closes the clients
}

// look connects to the servers, and returns a looker.
func (s *servers) look(ctx context.Context) (*looker, error) {
	cs, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	l, err := cs.look(ctx)
	if err != nil {
		cs.Close()
		return nil, err
	}
	l.clients = cs
	return l, nil
}

// look returns a looker that uses these clients.
func (cs clients) look(ctx context.Context) (*looker, error) {
	engine, err := cs.engine()
	if err != nil {
		return nil, err
	}
	l := &looker{engine: engine}
	if len(cs) == 1 {
		if l.permits, err = locker.NewSemaphore(cs[0], 1); err != nil {
			return nil, err
		}
	}
	for _, c := range cs { // this loop ends when one server has answered, because the clocks of all servers of a quorum are nearly equal
		if ahead, err := clockOf(ctx, c); err == nil {
			l.clockOffset = ahead
			break
		}
	}
	return l, nil
}

// clockOf returns how far the clock of the server c is ahead of the clock of this machine. Its
// time-out is short, so that a node that hangs does not use up the time for the other nodes.
func clockOf(ctx context.Context, c redis.UniversalClient) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	asked := time.Now()
	at, err := c.Time(ctx).Result()
	return at.Sub(asked.Add(time.Since(asked) / 2)), err
}

func (l *looker) close() {
	closeWithin(l.engine, time.Second)
	if l.permits != nil {
		closeWithin(l.permits, time.Second)
	}
	l.clients.Close()
}

// inspect returns the state of one key.
func (l *looker) inspect(ctx context.Context, key string) (lock, error) {
	engine := l.engine
	if l.permits != nil {
		engine = l.permits
	}
	info, err := engine.Inspect(ctx, key)
	if err == nil && info.Mode == locker.Shared && l.permits != nil {
		info, err = l.engine.Inspect(ctx, key) // unlike l.permits, l.engine counts readers
	}
	if err != nil {
		return lock{}, err
	}
	return lock{key, info, l.elapsed(info.Since)}, nil
}

// elapsed returns the time from start to now, by the clock of the server.
func (l *looker) elapsed(start time.Time) time.Duration {
	if start.IsZero() {
		return 0
	}
	return max(time.Since(start)+l.clockOffset, 0)
}

// atOnce is the number of keys that are inspected at the same time.
const atOnce = 64

// all returns the locks whose keys match the pattern. It leaves out keys that have become free
// meanwhile.
func (l *looker) all(ctx context.Context, pattern string) ([]lock, error) {
	keys, err := l.engine.Keys(ctx, pattern)
	if err != nil {
		return nil, err
	}
	locks, err := l.inspectAll(ctx, keys)
	return slices.DeleteFunc(locks, func(l lock) bool { return !l.Held && l.Waiters == 0 }), err
}

// foreign returns the locks of other libraries and programs whose keys match the pattern: the
// strings that latchkit did not write.
func (l *looker) foreign(ctx context.Context, pattern string) ([]lock, error) {
	keys := make(map[string]bool)
	for _, c := range l.clients {
		if err := scan(ctx, c, pattern, "string", func(key string) { keys[key] = true }); err != nil {
			return nil, fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
		}
	}
	maps.DeleteFunc(keys, func(key string, _ bool) bool { return strings.HasPrefix(key, store.ReservedPrefix) })
	locks, err := l.inspectAll(ctx, slices.Sorted(maps.Keys(keys)))
	return slices.DeleteFunc(locks, func(l lock) bool { return !l.Foreign }), err
}

// scan calls found for each key at the servers of c that matches the pattern and has a value of
// this kind; "" is every kind. A key may be found twice.
func scan(ctx context.Context, c redis.UniversalClient, pattern, kind string, found func(key string)) error {
	var mu sync.Mutex
	at := func(ctx context.Context, c redis.UniversalClient) error {
		all := c.ScanType(ctx, 0, pattern, 500, kind).Iterator()
		for all.Next(ctx) {
			mu.Lock()
			found(all.Val())
			mu.Unlock()
		}
		return all.Err()
	}
	if cluster, ok := c.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error { return at(ctx, m) })
	}
	return at(ctx, c)
}

// inspectAll returns the state of each key.
func (l *looker) inspectAll(ctx context.Context, keys []string) ([]lock, error) {
	locks, errs := make([]lock, len(keys)), make([]error, len(keys))
	places := make(chan int)
	var work sync.WaitGroup
	for range min(atOnce, len(keys)) {
		work.Go(func() {
			for i := range places {
				locks[i], errs[i] = l.inspect(ctx, keys[i])
			}
		})
	}
	for i := range keys {
		places <- i
	}
	close(places)
	work.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return locks, nil
}

// orders maps the name of each sort order to its comparison function.
var orders = map[string]func(a, b lock) int{
	"key":     func(a, b lock) int { return strings.Compare(a.key, b.key) },
	"waiters": func(a, b lock) int { return b.Waiters - a.Waiters },
	"age":     func(a, b lock) int { return cmp.Compare(b.age, a.age) },
	"left":    func(a, b lock) int { return cmp.Compare(a.ends(), b.ends()) },
}

// ends returns the time until the lock ends, for sorting. It returns the largest value for a
// lock that never ends, so that this lock comes last.
func (l lock) ends() time.Duration {
	if !l.Held || l.Left < 0 {
		return math.MaxInt64
	}
	return l.Left
}
