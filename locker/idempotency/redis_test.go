package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker/idempotency"
)

func TestServicesThatShareARedisKeepTheirAnswersApart(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	shop, bank := idempotency.NewRedis(client, idempotency.WithPrefix("shop:")), idempotency.NewRedis(client, idempotency.WithPrefix("bank:"))
	if _, err := shop.Swap(t.Context(), t.Name(), idempotency.Record{}, done, time.Minute); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Exists(t.Context(), "shop:response:"+t.Name()).Result(); n != 1 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if rec, err := bank.Load(t.Context(), t.Name()); rec.Run != "" || err != nil {
		t.Errorf("%+v, %v", rec, err)
	}
}

// A full server must refuse new work, but must still know which work was done.
func TestAFullServerRefusesToBegin(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := idempotency.NewRedis(client)
	if now, err := s.Swap(t.Context(), "early", idempotency.Record{}, open, time.Minute); err != nil || now.Run != open.Run {
		t.Fatal(now, err)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(t.Context(), "late", idempotency.Record{}, open, time.Minute); err == nil {
		t.Error("a full server has begun a request")
	}
	if _, err := s.Swap(t.Context(), "early", idempotency.Record{Run: open.Run, Open: true}, done, time.Minute); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Swap: %v; want the server's error", err)
	}
	if got, err := s.Load(t.Context(), "early"); err != nil || got.Run != open.Run || got.Open || got.Answer != nil {
		t.Errorf("%+v, %v; want that the work is marked as done", got, err)
	}
}

// hanging is the client of a server that does not answer, and ignores contexts.
type hanging struct {
	redis.Cmdable
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

func TestAServerThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hanging{released: make(chan struct{})}
		defer close(h.released)
		s := idempotency.NewRedis(h)
		for name, call := range map[string]func() error{
			"Load": func() error { _, err := s.Load(t.Context(), "a"); return err },
			"Swap": func() error {
				_, err := s.Swap(t.Context(), "a", idempotency.Record{}, open, time.Minute)
				return err
			},
		} {
			began := time.Now()
			if err := call(); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		}
	})
}

// A program in FIPS 140-only mode may not compute a SHA-1, so the digest is in a file.
func TestTheDigestIsThatOfTheScript(t *testing.T) {
	locktest.CheckDigests(t, "lua/digests", map[string]string{"swap": idempotency.SwapText()})
}
