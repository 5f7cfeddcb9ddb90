package main

import (
	"context"
	"testing"
	"time"
)

func TestContestantsLock(t *testing.T) {
	srv := startServer(t)
	for _, c := range contestants {
		if c.noLock || c.admits || c.name == unlocked.name {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			key := "wanted by two of " + c.name
			one, other := open(t, c, srv.Addr(), 0), open(t, c, srv.Addr(), 1)
			held, err := one.Lock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			if _, err := other.Lock(short, key); err == nil {
				t.Fatal("two hold it")
			}
			if err := held.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			// The waiter that has just given up may still get the key by hand-off. Then its
			// library releases the key a moment later.
			deadline := time.Now().Add(10 * time.Second)
			for srv.witness.Exists(t.Context(), c.keyOnServer(key)).Val() != 0 {
				if time.Now().After(deadline) {
					t.Fatal("the key is still there after the release")
				}
			}
			if held, err = other.Lock(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if n := srv.witness.Exists(t.Context(), c.keyOnServer(key)).Val(); n != 1 {
				t.Error("the key is not at the name that redisKey returns")
			}
			if r, ok := held.(refresher); ok {
				if err := r.Refresh(t.Context(), lockTTL); err != nil {
					t.Error(err)
				}
			}
			if err := held.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// open opens a contestant. The end of the test closes it.
func open(t *testing.T, c contestant, addr string, process int) locks {
	t.Helper()
	l, err := c.open(settings{Addr: addr, TTL: lockTTL, Process: process})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}
