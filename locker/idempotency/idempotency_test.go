package idempotency_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker/idempotency"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// stores are the Stores under test, empty.
func stores(t *testing.T) map[string]idempotency.Store {
	t.Helper()
	return map[string]idempotency.Store{
		"in memory": idempotency.NewMemory(),
		"on Redis":  idempotency.NewRedis(redistest.Shared(t).Client(t), idempotency.WithPrefix(rand.Text()+":")),
	}
}

func record(body string) idempotency.Record {
	return idempotency.Record{
		Fingerprint: [32]byte{1, 2, 255}, Status: 201, Body: []byte(body),
		Header: map[string][]string{"Content-Type": {"application/json"}, "X-Two": {"a", "b"}},
	}
}

func TestAResponseComesBackAsItWas(t *testing.T) {
	for name, s := range stores(t) {
		key := t.Name() + name
		if _, found, err := s.Load(t.Context(), key); found || err != nil {
			t.Fatalf("%s: found %v, %v", name, found, err)
		}
		saved, want := record("\x00 not text \xff"), record("\x00 not text \xff")
		saved.Partial, want.Partial = true, true
		if err := s.Save(t.Context(), key, saved, time.Minute); err != nil {
			t.Fatal(err)
		}
		saved.Header["X-Two"][1], saved.Body[1] = "changed", 'x' // it stays the caller's
		for range 2 {
			got, found, err := s.Load(t.Context(), key)
			if !found || err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: %+v, %v, %v", name, got, found, err)
			}
			got.Header["X-Two"][0], got.Body[0] = "changed", 'x' // it is the caller's now
		}
	}
}

func TestTheFirstResponseIsTheOneThatStays(t *testing.T) {
	for name, s := range stores(t) {
		key := t.Name() + name
		for _, body := range []string{"first", "second"} {
			if err := s.Save(t.Context(), key, record(body), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if got, _, err := s.Load(t.Context(), key); err != nil || string(got.Body) != "first" {
			t.Errorf("%s: %q, %v", name, got.Body, err)
		}
	}
}

func TestAResponseRunsOutOnRedis(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	if err := idempotency.NewRedis(client).Save(t.Context(), t.Name(), record("x"), 90*time.Second); err != nil {
		t.Fatal(err)
	}
	if ttl, err := client.PTTL(t.Context(), "response:"+t.Name()).Result(); err != nil || ttl > 90*time.Second || ttl < 30*time.Second {
		t.Errorf("%v, %v", ttl, err)
	}
}

func TestServicesThatShareARedisKeepTheirResponsesApart(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	shop, bank := idempotency.NewRedis(client, idempotency.WithPrefix("shop:")), idempotency.NewRedis(client, idempotency.WithPrefix("bank:"))
	if err := shop.Save(t.Context(), t.Name(), record("x"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Exists(t.Context(), "shop:response:"+t.Name()).Result(); n != 1 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if _, found, err := bank.Load(t.Context(), t.Name()); found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestAResponseThatHasRunOutGivesWayToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := idempotency.NewMemory()
		for _, body := range []string{"of yesterday", "of today"} {
			if err := m.Save(t.Context(), "key", record(body), time.Hour); err != nil {
				t.Fatal(err)
			}
			if got, found, err := m.Load(t.Context(), "key"); !found || err != nil || string(got.Body) != body {
				t.Errorf("%q, %v, %v; want the one %s", got.Body, found, err, body)
			}
			<-time.After(time.Hour)
		}
	})
}

func TestAResponseRunsOutInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := idempotency.NewMemory()
		for i := range 1000 {
			if err := m.Save(t.Context(), fmt.Sprint(i), record("x"), time.Minute); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) //nolint:forbidigo // a bubble: this is how time passes
		}
		if n := m.Len(); n > 130 { // 60 live; a sweep comes when their number has doubled
			t.Errorf("%d responses are kept", n)
		}
		if _, found, err := m.Load(t.Context(), "939"); found || err != nil {
			t.Errorf("found after a minute: %v, %v", found, err)
		}
		if _, found, err := m.Load(t.Context(), "941"); !found || err != nil {
			t.Errorf("found within the minute: %v, %v", found, err)
		}
		if err := m.Save(t.Context(), "0", record("again"), time.Minute); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := m.Load(t.Context(), "0"); string(got.Body) != "again" {
			t.Errorf("%q", got.Body)
		}
	})
}

func TestAContextEndsACall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, s := range stores(t) {
		if _, _, err := s.Load(ctx, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Save(ctx, "a", record("x"), time.Minute); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// hanging is a server that does not answer, and whose client does not care for contexts.
type hanging struct{ until chan struct{} }

func (h hanging) Get(ctx context.Context, _ string) *redis.StringCmd {
	<-h.until
	return redis.NewStringCmd(ctx)
}

func (h hanging) SetArgs(ctx context.Context, _ string, _ any, _ redis.SetArgs) *redis.StatusCmd {
	<-h.until
	return redis.NewStatusCmd(ctx)
}

func TestAServerThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hanging{make(chan struct{})}
		defer close(h.until)
		s := idempotency.NewRedis(h)
		began := time.Now()
		if _, _, err := s.Load(t.Context(), "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		began = time.Now()
		if err := s.Save(t.Context(), "a", record("x"), time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestWhatIsNoResponseIsNotTakenForOne(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	s := idempotency.NewRedis(client)
	for _, text := range []string{"", "hello", `{"v":2}`, `{"v":1,"f":"AAAA"}`, `{"v":2,"f":"` + strings.Repeat("A", 43) + `="}`} {
		if err := client.Set(t.Context(), "response:"+t.Name(), text, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if _, found, err := s.Load(t.Context(), t.Name()); found || err == nil || !strings.Contains(err.Error(), "no response that this version has kept") {
			t.Errorf("%q: %v, %v", text, found, err)
		}
	}
}
