package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// bounded makes calls end with their context, so that their callers are back in time.
func bounded(o *redis.Options) { o.ContextTimeoutEnabled = true }

func TestASwallowedAnswerIsNotBusyAndLeaksNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := through(t, server, proxy, bounded)
	l := newSingle(t, client)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))

	swallowed := proxy.SwallowReplies(1, scriptCall(locker.OpAcquire, "silent"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, locker.Rule{Key: "silent"})
	wantErr(t, err, "silent", context.DeadlineExceeded, locker.ErrUnavailable)
	wantNot(t, err, locker.ErrBusy)
	if swallowed.Hits() != 1 {
		t.Fatal("positive control: no answer was swallowed")
	}
	eventually(t, "the key is free", func() bool { return client.Exists(t.Context(), "silent").Val() == 0 })
}

func TestAnAcquireThatIsExecutedAfterItsUndoTakesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := through(t, server, proxy, bounded)
	direct := server.Client(t)
	l := newSingle(t, client)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))

	held := proxy.HoldRequests(1, scriptCall(locker.OpAcquire, "zombie"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, locker.Rule{Key: "zombie"})
	wantErr(t, err, "zombie", context.DeadlineExceeded)
	eventually(t, "the undo has run", func() bool { return len(direct.Keys(t.Context(), "latchkit:x:*").Val()) == 1 })
	proxy.ResetCommands()
	if held.Hits() != 1 {
		t.Fatal("positive control: the acquire was not held back")
	}
	before := scriptsRun(t, direct)
	held.Lift()
	eventually(t, "the acquire is executed, late", func() bool { return scriptsRun(t, direct) > before })
	if n := direct.Exists(t.Context(), "zombie").Val(); n != 0 {
		t.Fatal("the late acquire took the key")
	}
}

func TestRenewalsSurviveABadConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	l := newSingle(t, through(t, server, proxy))
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: 15 * time.Second}) // a TTL that leaves time for five lost renewals
	lost := proxy.LoseReplies(5, scriptCall(locker.OpRenew, "a"))
	lost.Await(t, 5)
	first := lease.Expires()
	eventually(t, "the lease is renewed again, or has ended", func() bool {
		return lease.Expires().After(first) || lease.Context().Err() != nil
	})
	if lease.Context().Err() != nil {
		t.Fatal(context.Cause(lease.Context()))
	}
	release(t, lease)
}

func TestAPartitionIsALossInTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	direct := server.Client(t)
	l := newSingle(t, through(t, server, proxy))
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
	hole := proxy.BlackHole()
	lost(t, lease, locker.ErrLost)
	gone := direct.Exists(t.Context(), "a").Val() == 0
	late := time.Since(lease.Expires()) // on a busy machine, this goroutine or the answer may be late
	if gone && late < 5*time.Millisecond {
		t.Error("the server gave the key away before its holder was notified")
	}
	hole.Lift()
}
