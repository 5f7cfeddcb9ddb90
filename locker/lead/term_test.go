package lead_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The channel of Terms always has the latest Term, even if the receiver was slow to read the
// Terms before it.
func TestTermsTellsOfTheBeginAndTheEnd(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		c := newCandidate(t, l, locker.Rule{})
		_, fence := c.awaitTerm()
		synctest.Wait()
		if news := <-c.Terms(); news.Fence != fence || news.Began.IsZero() || !news.Ended.IsZero() || news.Cause != nil {
			t.Errorf("at the begin: %+v", news)
		}
		time.Sleep(time.Hour)
		revoke(t, l, fence)
		news := <-c.Terms()
		if lasted := news.Ended.Sub(news.Began); news.Fence != fence || lasted < time.Hour || !errors.Is(news.Cause, locker.ErrRevoked) {
			t.Errorf("at the end: %+v", news)
		}
		for range 3 {
			_, fence = c.awaitTerm()
			revoke(t, l, fence)
			synctest.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		_, fence = c.awaitTerm()
		if news := <-c.Terms(); news.Fence != fence || !news.Ended.IsZero() {
			t.Errorf("the latest news are %+v, want the begin of %d", news, fence)
		}
		if err := c.stop(); err != nil {
			t.Error(err)
		}
		if news := <-c.Terms(); news.Fence != fence || !errors.Is(news.Cause, context.Canceled) {
			t.Errorf("at the end of Run: %+v", news)
		}
		if _, open := <-c.Terms(); open {
			t.Error("the channel is not closed")
		}
	})
}

// A function that does not return is reported after the grace, and again after each TTL. When the
// function has returned, the process is a candidate again.
func TestAnOverrunIsReported(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var recorder lockertest.Recorder
		l := lockertest.NewLocker(t, store, locker.WithObserver(&recorder))
		c := newCandidate(t, l, locker.Rule{TTL: 10 * time.Second}, lead.WithGrace(3*time.Second))
		ctx, fence := c.awaitTerm()
		c.slow.Store(int64(30 * time.Second))
		revoke(t, l, fence)
		<-ctx.Done()
		synctest.Wait() // by now, the function sleeps
		c.slow.Store(0)
		for i, pause := range []time.Duration{3 * time.Second, 10 * time.Second, 10 * time.Second} {
			<-time.After(pause)
			synctest.Wait()
			reports := recorder.Records("overrun")
			if len(reports) != i+1 || !errors.Is(reports[i].Outcome.Err, locker.ErrRevoked) {
				t.Fatalf("reports %+v, want %d", reports, i+1)
			}
		}
		c.awaitTerm()
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	})
}

// The Locker's Observer sees each term until fn has returned, and learns how the term ended.
func TestTheObserverSeesTerms(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var recorder lockertest.Recorder
		l := lockertest.NewLocker(t, store, locker.WithObserver(&recorder))
		c := newCandidate(t, l, locker.Rule{Name: "outbox", EndAfter: time.Hour})
		var fences []uint64
		elected := func() {
			_, fence := c.awaitTerm()
			fences = append(fences, fence)
		}
		elected()
		c.StepDown("for an upgrade")
		elected()
		revoke(t, l, fences[1])
		elected()
		store.Wipe()
		elected() // this term ends by EndAfter
		elected()
		if err := c.stop(); err != nil {
			t.Error(err)
		}
		want := []locker.Result{"stepped_down", locker.ResultRevoked, locker.ResultLost, locker.ResultExpired, locker.ResultReleased}
		records := recorder.Records("lead")
		if len(records) != len(want) {
			t.Fatalf("%d terms were observed, want %d", len(records), len(want))
		}
		for i, r := range records {
			if r.Outcome.Result != want[i] || r.Outcome.Fence != fences[i] || r.Rule.Name != "outbox" {
				t.Errorf("term %d: %+v, want %s", i, r, want[i])
			}
		}
	})
}

// While the server is unavailable, the pauses grow to the length of a TTL, so there is a leader
// soon after the server is back. After terms that end at once, the pauses grow to 30 s.
func TestPausesGrow(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		c := newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{TTL: 10 * time.Second})
		time.Sleep(time.Hour)
		store.Fail(locker.OpAcquire, nil)
		back := time.Now()
		c.awaitTerm()
		if took := time.Since(back); took > 14*time.Second {
			t.Errorf("the server is back, and has a leader after %v", took)
		}
		terms := 0
		for until := time.Now().Add(time.Hour); time.Now().Before(until); terms++ {
			store.Wipe()
			c.awaitTerm()
		}
		if terms < 50 || terms > 160 { // after each loss, a pause of 30 to 37 s follows
			t.Errorf("%d short terms in an hour", terms)
		}
		time.Sleep(time.Minute)
		for _, after := range []string{"a term of a minute", "a short term behind it"} {
			began := time.Now()
			store.Wipe()
			c.awaitTerm()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("after %s the next one began after %v", after, took)
			}
		}
	})
}

// After a pause, no look at the leader's context says that it is alive. Here the clock of the
// bubble jumps to the end of the lease, and the function runs before or after the goroutine that
// ends it.
func TestALookAtTheLeadersContextEndsATermWhoseTimeIsOver(t *testing.T) {
	for name, look := range locktest.Looks {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store, locker.WithoutRenewal())
				for range 50 {
					ctx, stop := context.WithCancel(t.Context())
					_ = lead.Run(ctx, l, locker.Rule{Key: "a", TTL: time.Second}, func(ctx context.Context) error {
						defer stop()
						lease, _ := locker.FromContext(ctx)
						time.Sleep(time.Until(lease.Expires()))
						if !look(ctx) {
							t.Error("the context says that the process leads")
						}
						return nil
					})
				}
			})
		})
	}
}
