package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// beforeRevocation is a hook that calls swap before the step that revokes.
type beforeRevocation struct{ swap func() }

func (beforeRevocation) DialHook(next redis.DialHook) redis.DialHook { return next }
func (beforeRevocation) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (b beforeRevocation) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for _, word := range cmd.Args() {
			if text, ok := word.(*string); ok && *text == "revoked:drill" || word == "revoked:drill" {
				b.swap()
			}
		}
		return next(ctx, cmd)
	}
}

// When the revocation comes, the permit that it names has ended, and the same token has another
// permit. Or the lease has ended, and another token has the key.
func TestARevocationHitsOnlyTheGrantWithItsFence(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(locker.Client) store.Store{"a permit": locktest.SemaphoreStore, "a lease": locktest.SingleStore} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client, direct := server.Client(t), open(server.Client(t))
			s, c := open(client), claimOf(rand.Text())
			later := claimOf(c.Key)
			if name == "a permit" {
				c = unitsOf(c.Key, 1, 2)
				later = c
				granted(t, direct, unitsOf(c.Key, 1, 2))
			}
			first, err := direct.Acquire(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			swaps := 0
			client.AddHook(beforeRevocation{func() {
				if swaps++; swaps == 1 { // the text of the script follows its digest
					stateOf(t, store.Released)(direct.Release(t.Context(), c))
					granted(t, direct, later)
				}
			}})
			stateOf(t, store.NotOurs)(store.CapabilitiesOf(s).Revoke(t.Context(), c.Key, first.Fence, "drill"))
			if swaps == 0 {
				t.Fatal("positive control: nothing was swapped")
			}
			renewed(t, direct, later, store.Granted)
		})
	}
}

// All keys of a semaphore last as long as its last permit, also after a renewal of this permit.
func TestARenewalMakesAllKeysOfAPermitLast(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, s := server.Client(t), locktest.SemaphoreStore(server.Client(t))
	key := rand.Text()
	c := granted(t, s, unitsOf(key, 1, 2))
	c.TTL = time.Hour
	renewed(t, s, c, store.Granted)
	for _, part := range []string{key, redisstore.PermitsKey(key), redisstore.UsesKey(key)} {
		if left := client.PTTL(t.Context(), part).Val(); left < 59*time.Minute {
			t.Errorf("%s lasts for %v, want an hour", part, left)
		}
	}
}

// A claim for more units than its limit would wait for ever. Such a claim is refused without a
// call.
func TestMoreUnitsThanTheLimitAreRefused(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	s := locktest.SemaphoreStore(client)
	for _, c := range []store.Claim{unitsOf(rand.Text(), 3, 2), unitsOf(rand.Text(), 2, 0)} {
		began := s.(calls.Steps).Begin(t.Context(), calls.Acquire, c, nil)
		<-began.Answered()
		for name, ask := range map[string]func() (store.Grant, error){
			"Acquire": func() (store.Grant, error) { return s.Acquire(t.Context(), c) }, "Begin": began.Answer,
		} {
			var no *store.Refusal
			if _, err := ask(); !errors.As(err, &no) || no.Temporary || !errors.Is(err, store.ErrUnsupported) {
				t.Errorf("%s of %d units of %d: %v", name, c.Weight, c.Limit, err)
			}
		}
		if client.Exists(t.Context(), c.Key, redisstore.QueueKey(c.Key), redisstore.CounterKey(c.Key)).Val() != 0 {
			t.Error("the server was asked")
		}
	}
}

// For a key with permits, Inspect returns the data of the permit that runs out first, also when L
// was evicted.
func TestInspectionShowsThePermitThatRunsOutFirst(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	s, key := locktest.SemaphoreStore(client), rand.Text()
	first, last := unitsOf(key, 1, 5), unitsOf(key, 1, 4)
	first.TTL, first.Metadata = 20*time.Second, "first"
	last.TTL, last.Metadata = time.Hour, "last"
	granted(t, s, last)
	granted(t, s, first)
	for _, evicted := range []int64{0, 1} {
		if evicted > 0 && client.Del(t.Context(), key).Val() != evicted {
			t.Fatal("positive control: nothing was evicted")
		}
		info, err := store.CapabilitiesOf(s).Inspect(t.Context(), key)
		if err != nil || !info.Held || info.Limit != 4 || info.Used != 2 || info.Metadata != "first" || info.Since.IsZero() ||
			info.Left <= 0 || info.Left > first.TTL {
			t.Errorf("%d keys were evicted: %+v %v", evicted, info, err)
		}
	}
}

// The note for a revoked holder lasts as long as its permit would have lasted. A kept permit has no
// holder that reads a note. A revocation finds no permit when P was evicted, because the permits
// are unknown.
func TestTheNoteForARevokedPermit(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	s, key := locktest.SemaphoreStore(client), rand.Text()
	revoke := store.CapabilitiesOf(s).Revoke
	long, kept := unitsOf(key, 1, 2), unitsOf(key, 1, 2)
	long.TTL = time.Hour
	g, err := s.Acquire(t.Context(), long)
	if err != nil {
		t.Fatal(err)
	}
	stateOf(t, store.Released)(revoke(t.Context(), key, g.Fence, "drill"))
	if left := client.PTTL(t.Context(), redisstore.TombstoneKey(key, long.Owner)).Val(); left < 59*time.Minute {
		t.Errorf("the note lasts for %v, want an hour", left)
	}
	if g, err = s.Acquire(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	kept.KeepFor = time.Minute
	stateOf(t, store.Released)(s.Release(t.Context(), kept))
	stateOf(t, store.Released)(revoke(t.Context(), key, g.Fence, "drill"))
	for _, name := range client.Keys(t.Context(), "*"+key+"*").Val() {
		if name != redisstore.CounterKey(key) && name != redisstore.TombstoneKey(key, long.Owner) {
			t.Errorf("%s is left", name)
		}
	}
	if g, err = s.Acquire(t.Context(), unitsOf(key, 1, 2)); err != nil {
		t.Fatal(err)
	}
	if client.Del(t.Context(), redisstore.PermitsKey(key)).Val() != 1 {
		t.Fatal("positive control: nothing was evicted")
	}
	stateOf(t, store.NotOurs)(revoke(t.Context(), key, g.Fence, "drill"))
}

// Another library has taken the key after L was evicted. The permits are still known. So a
// revocation whose fence belongs to no permit must not affect the other library's lock.
func TestNoPermitIsRevokedForAForeignLock(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	s, c := locktest.SemaphoreStore(client), unitsOf(rand.Text(), 1, 2)
	g, err := s.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	client.Set(t.Context(), c.Key, "foreign", time.Minute)
	stateOf(t, store.NotOurs)(store.CapabilitiesOf(s).Revoke(t.Context(), c.Key, g.Fence+1000, "drill"))
	client.HSet(t.Context(), redisstore.UsesKey(c.Key), c.Owner, "1|1|no number|2|0|-|")
	if info, err := store.CapabilitiesOf(s).Inspect(t.Context(), c.Key); err == nil {
		t.Errorf("a permit that cannot be read: %+v", info)
	}
}

// A release for which no caller waits reports its error, so that the Engine repeats the release.
func TestAReleaseOfAPermitReportsItsError(t *testing.T) {
	t.Parallel()
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer func() { _ = away.Close() }()
	answered := make(chan error, 1)
	locktest.SemaphoreStore(away).(calls.Steps).Begin(t.Context(), calls.Release, unitsOf(rand.Text(), 1, 1),
		func(_ store.Grant, err error) { answered <- err })
	if err := <-answered; err == nil {
		t.Error("a release that reached no server has succeeded")
	}
}
