package optimistic_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/optimistic"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// increment adds one to the number in old.
func increment(_ context.Context, old []byte) ([]byte, error) {
	n, err := strconv.Atoi(string(old))
	if err != nil && old != nil {
		return nil, err
	}
	return []byte(strconv.Itoa(n + 1)), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A key is created, changed, left unchanged and deleted. Its time to live does not change.
func TestAValueIsChanged(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	key := t.Name()
	must(t, optimistic.Update(t.Context(), c, key, increment))
	must(t, c.Expire(t.Context(), key, time.Hour).Err())
	must(t, optimistic.Update(t.Context(), c, key, increment))
	if value, left := c.Get(t.Context(), key).Val(), c.TTL(t.Context(), key).Val(); value != "2" || left < time.Minute {
		t.Errorf("%q for %v, want 2 for an hour", value, left)
	}
	must(t, optimistic.Update(t.Context(), c, key, func(_ context.Context, old []byte) ([]byte, error) { return old, nil }))
	torn := errors.New("torn")
	if err := optimistic.Update(t.Context(), c, key, func(context.Context, []byte) ([]byte, error) { return nil, torn }); err != torn { // the error must be the same, and not a copy
		t.Errorf("%v, want %v", err, torn)
	}
	if value := c.Get(t.Context(), key).Val(); value != "2" {
		t.Errorf("%q", value)
	}
	must(t, optimistic.Update(t.Context(), c, key, func(context.Context, []byte) ([]byte, error) { return []byte{}, nil }))
	must(t, optimistic.Update(t.Context(), c, key, func(_ context.Context, old []byte) ([]byte, error) {
		if old == nil || len(old) != 0 {
			t.Errorf("an empty value is %q", old)
		}
		return nil, nil
	}))
	if c.Exists(t.Context(), key).Val() != 0 {
		t.Error("it is not deleted")
	}
}

// A function may compute the new value in the memory of the old value.
func TestAValueThatIsChangedInPlaceIsWritten(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	key := t.Name()
	must(t, c.MSet(t.Context(), key, "a", key+"2", "b").Err())
	must(t, optimistic.Update(t.Context(), c, key, func(_ context.Context, old []byte) ([]byte, error) {
		old[0]++
		return old, nil
	}))
	must(t, optimistic.UpdateAll(t.Context(), c, []string{key, key + "2"}, func(_ context.Context, old map[string][]byte) (map[string][]byte, error) {
		old[key][0]++
		old[key+"2"][0]++
		return old, nil
	}))
	if got := fmt.Sprint(c.MGet(t.Context(), key, key+"2").Val()); got != "[c c]" {
		t.Errorf("%s, want [c c]", got)
	}
}

// When another client writes between the read and the write, fn runs again with the new value.
func TestAConflictIsTriedAgain(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	key, calls := t.Name(), 0
	must(t, optimistic.Update(t.Context(), c, key, func(ctx context.Context, old []byte) ([]byte, error) {
		if calls++; calls <= 3 {
			must(t, c.Set(ctx, key, fmt.Sprint(calls*10), 0).Err())
		}
		return increment(ctx, old)
	}))
	if value := c.Get(t.Context(), key).Val(); value != "31" || calls != 4 {
		t.Errorf("%q after %d calls, want 31 after 4", value, calls)
	}
}

// A write to any of the keys is a conflict. fn may change the map that it gets, and return this
// map.
func TestEachKeyIsWatched(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	one, other, calls := t.Name()+":one", t.Name()+":other", 0
	must(t, c.Set(t.Context(), other, "before", 0).Err())
	must(t, optimistic.UpdateAll(t.Context(), c, []string{one, other}, func(ctx context.Context, old map[string][]byte) (map[string][]byte, error) {
		if calls++; calls == 1 {
			must(t, c.Set(ctx, other, "between", 0).Err())
		}
		old[one] = old[other]
		old[other] = nil
		return old, nil
	}))
	if calls != 2 || c.Get(t.Context(), one).Val() != "between" || c.Exists(t.Context(), other).Val() != 0 {
		t.Errorf("%d calls, %s is %q, %s exists: %d", calls, one, c.Get(t.Context(), one).Val(), other, c.Exists(t.Context(), other).Val())
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	key, calls := t.Name(), 0
	always := func(ctx context.Context, old []byte) ([]byte, error) {
		calls++
		must(t, c.Incr(ctx, key).Err())
		return []byte("mine"), nil
	}
	err := optimistic.Update(t.Context(), c, key, always, optimistic.WithAttempts(5))
	if !errors.Is(err, optimistic.ErrConflict) || calls != 5 || !strings.Contains(err.Error(), "5 attempts at "+key) {
		t.Errorf("%v after %d calls", err, calls)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = optimistic.Update(ctx, c, key, always, optimistic.WithBackoff(locker.Exponential(time.Hour, time.Hour)))
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, optimistic.ErrConflict) {
		t.Error(err)
	}
	if value := c.Get(t.Context(), key).Val(); value != "6" {
		t.Errorf("%q, want that nothing of it was written", value)
	}
}

// transact makes a transaction like another caller of the same client, which may get the same
// connection. Client.TxPipelined would not suit the test, because it uses connections of its own.
func transact(t *testing.T, c *redis.Client, key string) error {
	t.Helper()
	return c.Watch(t.Context(), func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(t.Context(), func(p redis.Pipeliner) error { p.Incr(t.Context(), key); return nil })
		return err
	})
}

// When fn fails or changes nothing, no WATCH is left on the connection. Otherwise the next
// transaction on the connection would fail.
func TestAConnectionIsGivenBackWithoutAWatch(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	c := server.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
	other, key := server.Client(t), t.Name()
	for _, fn := range []func(context.Context, []byte) ([]byte, error){
		func(context.Context, []byte) ([]byte, error) { return nil, errors.New("torn") },
		func(_ context.Context, old []byte) ([]byte, error) { return old, nil },
	} {
		_ = optimistic.Update(t.Context(), c, key, fn)
		must(t, other.Incr(t.Context(), key).Err())
		if err := transact(t, c, key+":other"); err != nil {
			t.Errorf("a transaction on the same connection: %v", err)
		}
	}
}

// When callers on many connections increment a number, no increment is lost. Two keys that are
// written together stay equal.
func TestNoUpdateIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]redis.UniversalClient{
		"server": redistest.Shared(t).Client(t), "Cluster": redistest.StartCluster(t).Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			left, right := "{"+t.Name()+"}:left", "{"+t.Name()+"}:right"
			var callers sync.WaitGroup
			for range 8 {
				callers.Go(func() {
					for range 20 {
						err := optimistic.UpdateAll(t.Context(), c, []string{left, right}, func(ctx context.Context, old map[string][]byte) (map[string][]byte, error) {
							if string(old[left]) != string(old[right]) {
								t.Errorf("left is %s, right is %s", old[left], old[right])
							}
							value, err := increment(ctx, old[left])
							return map[string][]byte{left: value, right: value}, err
						}, optimistic.WithAttempts(10_000))
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			callers.Wait()
			if value := c.Get(t.Context(), left).Val(); value != "160" {
				t.Errorf("%s increments, want 160", value)
			}
		})
	}
}

// When the answer is lost, the result is reported as unknown, and the write is not repeated.
func TestALostAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := chaos.NewProxy(t, server.Addr())
	c := server.Client(t, func(o *redis.Options) { o.Addr, o.MaxRetries = proxy.Addr(), 3 })
	proxy.ResetCommands()
	lost := proxy.LoseReplies(1, chaos.Command("exec"))
	err := optimistic.Update(t.Context(), c, t.Name(), increment)
	lost.Await(t, 1)
	if !errors.Is(err, optimistic.ErrUnknown) || proxy.Commands()["EXEC"] != 1 {
		t.Errorf("%v after %d EXEC", err, proxy.Commands()["EXEC"])
	}
	if value := server.Client(t).Get(t.Context(), t.Name()).Val(); value != "1" {
		t.Errorf("%q", value)
	}
}

// The end of ctx ends the call at once, even while the server hangs.
func TestTheEndOfTheContextEndsAHangingCall(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, command := range []string{"watch", "exec"} {
		proxy := chaos.NewProxy(t, server.Addr())
		c := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
		late := proxy.HoldRequests(1, chaos.Command(command))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- optimistic.Update(ctx, c, t.Name()+command, increment) }()
		late.Await(t, 1)
		cancel()
		began := time.Now()
		err := <-ended
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s: it took %v", command, took)
		}
		if !errors.Is(err, context.Canceled) || errors.Is(err, optimistic.ErrUnknown) != (command == "exec") {
			t.Errorf("%s: %v", command, err)
		}
		late.Lift()
	}
}

func TestWhatCannotBeUpdatedIsRefused(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	must(t, c.HSet(t.Context(), t.Name(), "field", "value").Err())
	all := func(_ context.Context, old map[string][]byte) (map[string][]byte, error) {
		return map[string][]byte{"other": []byte("x")}, nil
	}
	for says, f := range map[string]func() error{
		"WRONGTYPE":           func() error { return optimistic.Update(t.Context(), c, t.Name(), increment) },
		"the client is nil":   func() error { return optimistic.Update(t.Context(), nil, "a", increment) },
		"a key is empty":      func() error { return optimistic.Update(t.Context(), c, "", increment) },
		"at least 1":          func() error { return optimistic.Update(t.Context(), c, "a", increment, optimistic.WithAttempts(0)) },
		"not one of the keys": func() error { return optimistic.UpdateAll(t.Context(), c, []string{"a"}, all) },
		"there is no key":     func() error { return optimistic.UpdateAll(t.Context(), c, nil, all) },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// If fn leaves the value unchanged, no transaction is made. So it does not matter that another client
// has written the key meanwhile.
func TestAnUnchangedValueIsNotWritten(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	for _, value := range []string{"", "text"} {
		calls := 0
		must(t, c.Set(t.Context(), t.Name(), value, 0).Err())
		must(t, optimistic.Update(t.Context(), c, t.Name(), func(ctx context.Context, old []byte) ([]byte, error) {
			calls++
			return old, c.Set(ctx, t.Name(), "of the other client", 0).Err()
		}))
		if got := c.Get(t.Context(), t.Name()).Val(); calls != 1 || got != "of the other client" {
			t.Errorf("%q after %d calls", got, calls)
		}
	}
}

func TestTheObserverSeesAttempts(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	var recorder lockertest.Recorder
	key, calls := t.Name(), 0
	must(t, optimistic.Update(t.Context(), c, key, func(ctx context.Context, old []byte) ([]byte, error) {
		if calls++; calls == 1 {
			must(t, c.Incr(ctx, key).Err())
		}
		return increment(ctx, old)
	}, optimistic.WithObserver(&recorder, "cart")))
	records := recorder.Records("update")
	if len(records) != 1 || records[0].Rule.Name != "cart" || records[0].Outcome.Calls != 2 || records[0].Outcome.Result != "updated" {
		t.Errorf("%+v", records)
	}

	err := optimistic.Update(t.Context(), c, key, func(ctx context.Context, old []byte) ([]byte, error) {
		must(t, c.Incr(ctx, key).Err())
		return increment(ctx, old)
	}, optimistic.WithObserver(&recorder, "cart"), optimistic.WithAttempts(2))
	records = recorder.Records("update")
	if err == nil || len(records) != 2 || records[1].Outcome.Result != "conflict" || records[1].Outcome.Calls != 2 {
		t.Errorf("%v: %+v", err, records)
	}
}
