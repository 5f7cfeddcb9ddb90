package locker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// wantText fails the test unless err has the text want, in which # stands for any number and ~ for
// any short time. The Err of err, which a client may see, must not contain name.
func wantText(t *testing.T, err error, name, want string) {
	t.Helper()
	e, ok := errors.AsType[*locker.Error](err)
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	pattern := strings.NewReplacer("#", `\d+`, "~", `[\d.]+m?s`).Replace(regexp.QuoteMeta(want))
	if got := err.Error(); !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
		t.Errorf("the error is\n%s, want\n%s", got, want)
	}
	if name != "" && strings.Contains(e.Err.Error(), name) {
		t.Errorf("a client may see %q, which names the holder", e.Err)
	}
}

// ownName is the default of WithMetadata in this process.
func ownName(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("locker.test@%s:%d", host, os.Getpid())
}

func named(name string) locker.Option {
	return locker.WithMetadata(func(context.Context) string { return name })
}

func TestARefusalNamesTheHolderAndTheWaiters(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 4, locker.WithPrefix("shop:"))
		defer release(t, acquire(t, ls[0], locker.Rule{Key: "report:nightly"}))
		time.Sleep(2*time.Minute + 3*time.Second) //nolint:forbidigo // in a bubble
		for i := 1; i < 3; i++ {
			w := startWaiting(t, ls[i], locker.Rule{Key: "report:nightly"})
			defer func() { w.cancel(); <-w.ended }()
		}
		_, err := ls[3].Acquire(t.Context(), locker.Rule{Key: "report:nightly", Wait: locker.NoWait})
		wantText(t, err, ownName(t), "latchkit: acquire report:nightly: another holder has the lock: "+ownName(t)+
			", fence #, for 2m3s, 2 wait (retry after ~); latchctl show shop:report:nightly")
		_, err = ls[3].Acquire(t.Context(), locker.Rule{Key: "report:nightly", Wait: 10 * time.Second})
		wantText(t, err, ownName(t), "latchkit: acquire report:nightly: another holder has the lock: "+ownName(t)+
			", fence #, for 2m13s, 2 wait (retry after ~); latchctl show shop:report:nightly")
	})
}

func TestARefusalNamesAHolderInTheSameProcess(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithMaxWaiters(3))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 2)
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 15 * time.Second})
		wantText(t, err, ownName(t), "latchkit: acquire a: another holder has the lock: "+ownName(t)+", fence #, for 15s, 2 wait (retry after ~); latchctl show a")
		ws = append(ws, crowd(t, l, locker.Rule{Key: "a"}, 1)...)
		_, err = l.Acquire(t.Context(), locker.Rule{Key: "a"})
		wantText(t, err, ownName(t), "latchkit: acquire a: too many callers wait for the lock; the holder is "+ownName(t)+", fence #, for 15s, 3 wait (retry after ~); latchctl show a")
		release(t, lease)
		for _, w := range ws {
			release(t, w.awaitGrant(0))
		}
	})
}

// The leader of the waiters in a process waits at the server, behind the waiters of other
// processes.
func TestARefusalCountsTheLeaderAndTheProcessesInFront(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		ws := []*waiting{startWaiting(t, ls[1], locker.Rule{Key: "a"})}
		ws = append(ws, crowd(t, ls[2], locker.Rule{Key: "a"}, 2)...)
		_, err := ls[2].Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
		wantText(t, err, ownName(t), "latchkit: acquire a: another holder has the lock: "+ownName(t)+", fence #, for ~, 3 wait (retry after ~); latchctl show a")
		ws[1].cancel() // the next caller takes the leader's place
		<-ws[1].ended
		wantText(t, ws[1].err, ownName(t), "latchkit: acquire a: context canceled: another holder has the lock: "+ownName(t)+", fence #, for ~, 1 wait (retry after ~); latchctl show a")
		ws[2].cancel()
		<-ws[2].ended
		wantText(t, ws[2].err, ownName(t), "latchkit: acquire a: context canceled: another holder has the lock: "+ownName(t)+", fence #, for ~, 1 wait (retry after ~); latchctl show a")
		release(t, lease)
		release(t, ws[0].awaitGrant(0))
	})
}

func TestARefusalSaysWhatItKnowsOfTheHolder(t *testing.T) {
	const retry = " (retry after ~); latchctl show a"
	noWait := locker.Rule{Key: "a", Wait: locker.NoWait}
	for name, c := range map[string]struct {
		opts []locker.Option
		rule locker.Rule
		want string
	}{
		"without metadata": {[]locker.Option{locker.WithMetadata(nil)}, locker.Rule{}, ": fence #"},
		"an odd name":      {[]locker.Option{named("a\nb")}, locker.Rule{}, `: "a\nb", fence #`},
		"a name by a rule": {nil, locker.Rule{Metadata: "import 7"}, ": import 7, fence #"},
		"a long name":      {[]locker.Option{named(strings.Repeat("x", 250))}, locker.Rule{}, ": " + strings.Repeat("x", 200) + "… (250 bytes), fence #"},
		"readers":          {[]locker.Option{named("first")}, locker.Rule{Mode: locker.Shared}, ": first, fence #"},
		"a semaphore":      {nil, locker.Rule{Limit: 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store, c.opts...)
				c.rule.Key = "a"
				defer release(t, acquire(t, l, c.rule))
				asks := noWait
				asks.Limit = c.rule.Limit
				_, err := l.Acquire(t.Context(), asks)
				wantText(t, err, "", "latchkit: acquire a: another holder has the lock"+c.want+retry)
			})
		})
	}
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		release(t, acquire(t, l, locker.Rule{Key: "a", KeepFor: time.Minute}))
		_, err := l.Acquire(t.Context(), noWait)
		wantText(t, err, ownName(t), "latchkit: acquire a: another holder has the lock: a released lease, which its KeepFor keeps locked, fence # (retry after 1m0s); latchctl show a")
		store.Occupy("b", time.Minute)
		_, err = l.Acquire(t.Context(), locker.Rule{Key: "b", Wait: locker.NoWait})
		wantText(t, err, "", "latchkit: acquire b: another holder has the lock: another library or program (retry after ~); latchctl show b")
		bare := lockertest.NewLocker(t, onlySteps{store})
		_, err = bare.Acquire(t.Context(), locker.Rule{Key: "b", Wait: locker.NoWait})
		wantText(t, err, "", "latchkit: acquire b: another holder has the lock: another library or program (retry after ~)")
		striped, err := locker.NewStriped(l, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, acquire(t, striped, locker.Rule{Key: "c"}))
		_, err = striped.Acquire(t.Context(), locker.Rule{Key: "d", Wait: locker.NoWait})
		wantText(t, err, ownName(t), "latchkit: acquire d: another holder has the lock (stripe 0 of 1, which other keys share); the holder is "+ownName(t)+", fence # (retry after ~); latchctl show stripe:0/1")
	})
}

// onlySteps is a Store that can do nothing besides its steps.
type onlySteps struct{ store.Store }

// A key may come from a client, and an operator pastes the command into a shell.
func TestTheCommandInARefusalIsSafeToPaste(t *testing.T) {
	for key, want := range map[string]string{
		"order:42":                 "; latchctl show order:42",
		"{shop}:a-b_c/d.e":         "; latchctl show '{shop}:a-b_c/d.e'",
		"a; rm -rf $HOME `id`":     "; latchctl show 'a; rm -rf $HOME `id`'",
		"it's":                     `; latchctl show 'it'\''s'`,
		"größe":                    "; latchctl show 'größe'",
		"-n":                       "",
		"a\nb":                     "",
		strings.Repeat("long", 60): "",
	} {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			defer release(t, acquire(t, l, locker.Rule{Key: key}))
			_, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
			if _, command, _ := strings.Cut(err.Error(), "(retry after "); !strings.HasSuffix(command, "s)"+want) {
				t.Errorf("the refusal for %q ends with %q, want the command %q", key, command, want)
			}
		})
	}
}

// The name of a process is the same for all its leases, so a lease with the default name is handed
// over inside the process, without a call.
func TestAWaiterLearnsTheNameOfAHolderInTheSameProcess(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var rec lockertest.Recorder
		l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		w := startWaiting(t, l, locker.Rule{Key: "a"})
		before := calls(store)
		release(t, lease)
		second := w.awaitGrant(0)
		if n := calls(store) - before; n != 0 {
			t.Errorf("the lease was handed over with %d calls", n)
		}
		if got := rec.Records(locker.OpAcquire)[1].Outcome.HolderMetadata; got != ownName(t) {
			t.Errorf("the waiter's Observer learns that %q had the key, want %q", got, ownName(t))
		}
		release(t, second)
	})
}

// Two callers of one process meet while the first one's acquire is still on its way: the double
// click. The second one learns for whom it has waited, however its wait ends.
func TestAWaiterLearnsWhomItMetWhenItCameFirstToTheQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		held, wait time.Duration
	}{
		"the lease is handed over": {held: time.Millisecond, wait: time.Minute},
		"the streak is over":       {held: time.Second, wait: time.Minute},
		"the wait is over":         {held: time.Minute, wait: time.Second},
		"its context ends":         {held: time.Minute, wait: 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				var rec lockertest.Recorder
				l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
				store.DelayReplies(locker.OpAcquire, time.Millisecond)
				first := startWaiting(t, l, locker.Rule{Key: "a"})
				synctest.Wait() // its question is under way
				second := startWaiting(t, l, locker.Rule{Key: "a", Wait: c.wait})
				lease := first.awaitGrant(time.Millisecond)
				<-time.After(c.held)
				if c.wait == 0 {
					second.cancel()
				}
				if c.held < time.Minute {
					release(t, lease)
					release(t, second.awaitGrant(time.Second))
				} else {
					<-second.ended
					release(t, lease)
				}
				if met := rec.Records(locker.OpAcquire)[1].Outcome.Met.Fence; met != lease.Fence() {
					t.Errorf("it learns that it met the holder with fence %d, want %d", met, lease.Fence())
				}
			})
		})
	}
}
