package idempotency_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker/idempotency"
)

func TestARecordExpiresOnRedis(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	s := idempotency.NewRedis(client)
	ttl := func() time.Duration {
		t.Helper()
		ttl, err := client.PTTL(t.Context(), "response:"+t.Name()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return ttl
	}
	if _, _, _, err := s.Begin(t.Context(), t.Name(), request, 7, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := ttl(); got > 30*time.Second || got < 10*time.Second {
		t.Errorf("in progress: %v", got)
	}
	if err := s.Save(t.Context(), t.Name(), record("x"), 90*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := ttl(); got > 90*time.Second || got < 40*time.Second {
		t.Errorf("saved: %v", got)
	}
}

func TestServicesThatShareARedisKeepTheirAnswersApart(t *testing.T) {
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

func TestAnOperatorRemovesARecordFromRedis(t *testing.T) {
	s := onRedis(t)
	if err := s.Save(t.Context(), "a", record("x"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, found, err := s.Load(t.Context(), "a"); found || err != nil {
		t.Errorf("%v, %v", found, err)
	}
}

func TestAnAnswerIsStoredCompressed(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	size := func(body string) int {
		t.Helper()
		s, key := idempotency.NewRedis(client), rand.Text()
		if err := s.Save(t.Context(), key, record(body), time.Minute); err != nil {
			t.Fatal(err)
		}
		text, err := client.HGet(t.Context(), "response:"+key, "response").Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(text)
	}
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	if n := size(strings.Repeat(`{"sku":"book","count":2},`, 3000)); n > 3000 {
		t.Errorf("75 kB of JSON take %d bytes", n)
	}
	if n := size(string(noise)); n > len(noise)+100 {
		t.Errorf("64 KiB that cannot be compressed take %d bytes", n)
	}
}

// A full server must refuse new work, but must still know which work was done.
func TestAFullServerRefusesToBegin(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := idempotency.NewRedis(client)
	if _, _, began, err := s.Begin(t.Context(), "early", request, 7, time.Minute); err != nil || !began {
		t.Fatal(began, err)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := s.Begin(t.Context(), "late", request, 7, time.Minute); err == nil {
		t.Error("a full server has begun a request")
	}
	rec := record("x")
	if err := s.Save(t.Context(), "early", rec, time.Minute); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Save: %v; want the server's error", err)
	}
	want := idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.DoneOnly}
	if got, found, err := s.Load(t.Context(), "early"); err != nil || !found || got.State != want.State {
		t.Errorf("%+v, %v, %v; want that the work is marked as done", got, found, err)
	}
}

// hanging is the client of a server that does not answer, and ignores contexts.
type hanging struct {
	idempotency.Client
	released chan struct{}
}

func (h hanging) HMGet(ctx context.Context, _ string, _ ...string) *redis.SliceCmd {
	<-h.released
	return redis.NewSliceCmd(ctx)
}

func (h hanging) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	<-h.released
	return redis.NewCmd(ctx)
}

func (h hanging) Del(ctx context.Context, _ ...string) *redis.IntCmd {
	<-h.released
	return redis.NewIntCmd(ctx)
}

func TestAServerThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hanging{released: make(chan struct{})}
		defer close(h.released)
		s := idempotency.NewRedis(h)
		for name, call := range map[string]func() error{
			"Load":   func() error { _, _, err := s.Load(t.Context(), "a"); return err },
			"Begin":  func() error { _, _, _, err := s.Begin(t.Context(), "a", request, 7, time.Minute); return err },
			"Save":   func() error { return s.Save(t.Context(), "a", record("x"), time.Minute) },
			"Forget": func() error { return s.Forget(t.Context(), "a", 7) },
			"Remove": func() error { return s.Remove(t.Context(), "a") },
		} {
			began := time.Now()
			if err := call(); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		}
	})
}

func TestForeignDataIsNotReadAsAnAnswer(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	s := idempotency.NewRedis(client)
	name := "response:" + t.Name()
	good := []any{"fence", "00000000000000000007", "fingerprint", string(request[:])}
	for what, fields := range map[string][]any{
		"a fence only":             {"fence", "00000000000000000007"},
		"no fence":                 {"fingerprint", string(request[:])},
		"a fence that is a word":   {"fence", "seven", "fingerprint", string(request[:])},
		"a short fingerprint":      {"fence", "00000000000000000007", "fingerprint", "x"},
		"an empty response":        append(good[:4:4], "response", ""),
		"another version":          append(good[:4:4], "response", "9abc"),
		"a response that was cut":  append(good[:4:4], "response", "1\xc9\x01\x05\x05Cont"),
		"what cannot be inflated":  append(good[:4:4], "response", "2\xff\xff\xff"),
		"a length without a bound": append(good[:4:4], "response", "1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
	} {
		client.Del(t.Context(), name)
		if err := client.HSet(t.Context(), name, fields...).Err(); err != nil {
			t.Fatal(err)
		}
		if _, found, err := s.Load(t.Context(), t.Name()); found || err == nil || !strings.Contains(err.Error(), "in an unknown format") {
			t.Errorf("%s: %v, %v", what, found, err)
		}
	}
	if err := client.Set(t.Context(), name, `{"v":1}`, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if _, found, err := s.Load(t.Context(), t.Name()); found || err == nil {
		t.Errorf("a text: %v, %v", found, err)
	}
}
