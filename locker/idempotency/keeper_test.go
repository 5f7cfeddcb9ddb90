package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// desk is a Keeper whose Stores are in memory. Use a desk inside a testing/synctest bubble.
type desk struct {
	*testing.T
	idempotency.Keeper
	locks   *lockertest.Memory
	records *idempotency.Memory
	runs    int
}

func bubble(t *testing.T, test func(t *testing.T, d *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{T: t, locks: lockertest.NewMemory(), records: idempotency.NewMemory()}
		d.Keeper = idempotency.Keeper{Locker: lockertest.NewLocker(t, d.locks), Store: d.records}
		test(t, d)
	})
}

var pay = idempotency.Request{Rule: locker.Rule{Key: "idempotency:acme:k1"}, Fingerprint: request}

// do calls Do with a work function that returns outcome at once.
func (d *desk) do(req idempotency.Request, outcome idempotency.Outcome) (idempotency.Answer, error) {
	return d.Do(d.Context(), req, func(context.Context) idempotency.Outcome {
		d.runs++
		return outcome
	})
}

func kept(body string) idempotency.Outcome {
	return idempotency.Outcome{Keep: true, Response: idempotency.Response{Status: 201, Body: []byte(body)}}
}

func (d *desk) wantBody(answer idempotency.Answer, err error, body string, replayed bool, runs int) {
	d.Helper()
	if err != nil || string(answer.Response.Body) != body || answer.Replayed != replayed || d.runs != runs {
		d.Errorf("%q, replayed %v, %d runs, %v; want %q, %v, %d", answer.Response.Body, answer.Replayed, d.runs, err, body, replayed, runs)
	}
}

func TestARequestRunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		answer, err := d.do(pay, kept("first"))
		d.wantBody(answer, err, "first", false, 1)
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "first", true, 1)
		time.Sleep(idempotency.DefaultLifetime) //nolint:forbidigo // a bubble
		answer, err = d.do(pay, kept("of the next day"))
		d.wantBody(answer, err, "of the next day", false, 2)
	})
}

func TestAnAnswerIsFoundWithoutTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		_, _ = d.do(pay, kept("first"))
		before := d.locks.Calls(locker.OpAcquire)
		answer, err := d.do(pay, kept("second"))
		d.wantBody(answer, err, "first", true, 1)
		if n := d.locks.Calls(locker.OpAcquire) - before; n != 0 {
			t.Errorf("a replay has asked for the lock %d times", n)
		}
	})
}

func TestASecondRequestWaitsForTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		second := make(chan idempotency.Answer)
		answer, err := d.Do(t.Context(), pay, func(context.Context) idempotency.Outcome {
			go func() {
				answer, err := d.do(pay, kept("second"))
				if err != nil {
					t.Error(err)
				}
				second <- answer
			}()
			time.Sleep(time.Second) //nolint:forbidigo // a bubble
			return kept("first")
		})
		d.wantBody(answer, err, "first", false, 0)
		d.wantBody(<-second, nil, "first", true, 0)
	})
}

// A process that stops closes its Locker, and lets its requests finish. Their answers are
// stored: another process must not run the work again.
func TestWorkThatFinishesDuringCloseIsRemembered(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		stopping := lockertest.NewLocker(t, d.locks)
		k := idempotency.Keeper{Locker: stopping, Store: d.records}
		answer, err := k.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			go func() { _ = stopping.Close(context.WithoutCancel(ctx)) }()
			<-ctx.Done() // Close has ended ctx, and the lock is still held
			return kept("first")
		})
		d.wantBody(answer, err, "first", false, 0)
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "first", true, 0)
	})
}

// Close ends the context of work that runs. Work that fails then may have failed because of Close,
// so a repeated request must run it again.
func TestWorkThatFailsDuringCloseIsNotRemembered(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		stopping := lockertest.NewLocker(t, d.locks)
		k := idempotency.Keeper{Locker: stopping, Store: d.records}
		_, err := k.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			go func() { _ = stopping.Close(context.WithoutCancel(ctx)) }()
			<-ctx.Done()
			failed := kept("context canceled")
			failed.Failed = true
			return failed
		})
		if err != nil {
			t.Error(err)
		}
		answer, err := d.do(pay, kept("second"))
		d.wantBody(answer, err, "second", false, 1)
	})
}

// After Close, a lease can still be lost. Then the answer of the work is not stored.
func TestWorkThatLosesItsLeaseDuringCloseIsNotRemembered(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		stopping := lockertest.NewLocker(t, d.locks, locker.WithTTL(time.Second))
		k := idempotency.Keeper{Locker: stopping, Store: d.records}
		_, err := k.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			go func() { _ = stopping.Close(context.WithoutCancel(ctx)) }()
			<-ctx.Done()
			d.locks.Steal(pay.Rule.Key)
			<-time.After(10 * time.Second)
			return kept("first")
		})
		if !errors.Is(err, locker.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		if r, found, err := d.records.Load(t.Context(), pay.Rule.Key); err != nil || found && r.State == idempotency.Answered {
			t.Errorf("%+v, %v: the answer is stored, although the lease was lost", r, err)
		}
	})
}

func TestADifferentRequestIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		different := idempotency.Request{Rule: pay.Rule, Fingerprint: [32]byte{9}}
		_, _ = d.Do(t.Context(), pay, func(context.Context) idempotency.Outcome {
			short := different
			short.Rule.Wait = locker.NoWait
			if _, err := d.do(short, kept("x")); !errors.Is(err, idempotency.ErrReused) {
				t.Errorf("in progress: %v", err)
			}
			return kept("first")
		})
		if _, err := d.do(different, kept("x")); !errors.Is(err, idempotency.ErrReused) || d.runs != 0 {
			t.Errorf("answered: %v, %d runs", err, d.runs)
		}
	})
}

func TestAnAnswerThatIsNotKeptRunsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		answer, err := d.do(pay, idempotency.Outcome{Failed: true, Response: idempotency.Response{Status: 502}})
		if err != nil || answer.Response.Status != 502 || d.records.Len() != 0 {
			t.Errorf("%+v, %v, %d records", answer, err, d.records.Len())
		}
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "second", false, 2)
	})
}

func TestDiscardedAnswersRunAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		_, err := d.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			a, ok := idempotency.FromContext(ctx)
			if !ok {
				t.Fatal("there is no Attempt in the context of the work")
			}
			a.Discard()
			return kept("discarded")
		})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := d.do(pay, kept("second"))
		d.wantBody(answer, err, "second", false, 1)
	})
}

func TestAnAnswerThatWasTooLargeIsDone(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		out := kept("large")
		out.DoneOnly = true
		answer, err := d.do(pay, out)
		d.wantBody(answer, err, "large", false, 1)
		if _, err := d.do(pay, kept("x")); !errors.Is(err, locker.ErrDone) || d.runs != 1 {
			t.Errorf("%v, %d runs", err, d.runs)
		}
	})
}

func TestAPanicLetsTheNextRequestRun(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not go on")
				}
			}()
			_, _ = d.Do(t.Context(), pay, func(context.Context) idempotency.Outcome { panic("x") })
		}()
		if n := d.records.Len(); n != 0 {
			t.Errorf("%d records", n)
		}
		answer, err := d.do(pay, kept("second"))
		d.wantBody(answer, err, "second", false, 1)
	})
}

// When a client has disconnected, its work continues. The client's retry gets the answer of this
// work.
func TestTheWorkRunsToItsEndWhenTheClientLeaves(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		ctx, leave := context.WithCancel(t.Context())
		answer, err := d.Do(ctx, pay, func(ctx context.Context) idempotency.Outcome {
			leave()
			select {
			case <-ctx.Done():
				t.Errorf("the context of the work ended: %v", context.Cause(ctx))
			case <-time.After(50 * time.Second):
			}
			return kept("first")
		})
		d.wantBody(answer, err, "first", false, 0)
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "first", true, 0)
	})
}

func TestTheWorkIsBoundedAfterTheClientHasLeft(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		ctx, leave := context.WithCancel(t.Context())
		_, _ = d.Do(ctx, pay, func(ctx context.Context) idempotency.Outcome {
			time.Sleep(time.Hour) //nolint:forbidigo // virtual time; while the client is connected, the work has no time-out
			if ctx.Err() != nil {
				t.Errorf("the context of the work ended: %v", context.Cause(ctx))
			}
			leave()
			left := time.Now()
			<-ctx.Done()
			if d := time.Since(left); context.Cause(ctx) != idempotency.ErrUnfinished || d != idempotency.DefaultFinishWithin {
				t.Errorf("%v after %v", context.Cause(ctx), d)
			}
			return idempotency.Outcome{}
		})
	})
}

func TestTheWorkEndsWithTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		_, err := d.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			d.locks.Steal(pay.Rule.Key)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), locker.ErrLost) {
				t.Errorf("the context of the work ended with %v", context.Cause(ctx))
			}
			return kept("overtaken")
		})
		if !errors.Is(err, locker.ErrLost) {
			t.Errorf("%v; want ErrLost", err)
		}
		if rec, found, _ := d.records.Load(t.Context(), pay.Rule.Key); !found || rec.State != idempotency.InProgress {
			t.Errorf("%+v, %v; want the record in progress", rec, found)
		}
	})
}

func TestALaterRunKnowsOfAnInterruptedOne(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		_, _, _, err := d.records.Begin(t.Context(), pay.Rule.Key, request, 7, time.Hour) // as if a process had died during its work
		if err != nil {
			t.Fatal(err)
		}
		answer, err := d.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			a, _ := idempotency.FromContext(ctx)
			if fence, interrupted := a.Interrupted(); fence != 7 || !interrupted {
				t.Errorf("%d, %v; want the fence of the interrupted run", fence, interrupted)
			}
			if a.Lease().Fence() <= 7 {
				t.Errorf("the fence %d is not larger", a.Lease().Fence())
			}
			return kept("second")
		})
		d.wantBody(answer, err, "second", false, 0)
	})
}

func TestAFirstRunIsNoneThatWasInterrupted(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		_, _ = d.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			a, _ := idempotency.FromContext(ctx)
			if _, interrupted := a.Interrupted(); interrupted {
				t.Error("a first run was reported as a second one")
			}
			return kept("first")
		})
	})
}

// If a later holder has begun the same request, the earlier holder must not answer, even if its own
// lease still looks valid.
func TestAnOvertakenHolderHasNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		answer, err := d.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			_, _, began, err := d.records.Begin(ctx, pay.Rule.Key, request, 1<<62, time.Hour)
			if err != nil || !began {
				t.Fatal(began, err)
			}
			return kept("overtaken")
		})
		if !errors.Is(err, idempotency.ErrOvertaken) || len(answer.Response.Body) != 0 {
			t.Errorf("%+v, %v; want ErrOvertaken", answer, err)
		}
		if _, err := d.do(pay, kept("x")); !errors.Is(err, idempotency.ErrOvertaken) || d.runs != 0 {
			t.Errorf("%v, %d runs; want that a smaller fence does not begin", err, d.runs)
		}
	})
}

var errFull = errors.New("OOM command not allowed")

// failing is a Store whose calls fail.
type failing struct {
	idempotency.Store
	load, begin, save error
}

func (f failing) Load(ctx context.Context, key string) (idempotency.Record, bool, error) {
	if f.load != nil {
		return idempotency.Record{}, false, f.load
	}
	return f.Store.Load(ctx, key)
}

func (f failing) Begin(ctx context.Context, key string, print [32]byte, fence uint64, d time.Duration) (
	idempotency.Record, bool, bool, error,
) {
	if f.begin != nil {
		return idempotency.Record{}, false, false, f.begin
	}
	return f.Store.Begin(ctx, key, print, fence, d)
}

func (f failing) Save(ctx context.Context, key string, rec idempotency.Record, d time.Duration) error {
	if f.save != nil {
		return f.save
	}
	return f.Store.Save(ctx, key, rec, d)
}

func TestNothingRunsWhileTheStoreFails(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		for _, store := range []failing{{Store: d.records, load: errFull}, {Store: d.records, begin: errFull}} {
			d.Store = store
			_, err := d.do(pay, kept("x"))
			if !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, errFull) || d.runs != 0 {
				t.Errorf("%v, %d runs", err, d.runs)
			}
		}
	})
}

func TestDoneWorkIsAnsweredAlthoughItsAnswerCannotBeStored(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		d.Store = failing{Store: d.records, save: errFull}
		answer, err := d.do(pay, kept("first"))
		if !errors.Is(err, idempotency.ErrNotStored) || !errors.Is(err, errFull) || string(answer.Response.Body) != "first" {
			t.Errorf("%+v, %v", answer, err)
		}
	})
}

// database is a Transactor in memory. What a transaction saves is visible only after the commit.
type database struct {
	idempotency.Store
	begin, commit error
	committed     int
	rolledBack    int
}

type txKey struct{}

type transaction struct{ saves []func() error }

func (s *database) Save(ctx context.Context, key string, rec idempotency.Record, d time.Duration) error {
	if tx, ok := ctx.Value(txKey{}).(*transaction); ok {
		tx.saves = append(tx.saves, func() error { return s.Store.Save(context.Background(), key, rec, d) })
		return nil
	}
	return s.Store.Save(ctx, key, rec, d)
}

func (s *database) Transact(ctx context.Context, work func(context.Context) error) error {
	if s.begin != nil {
		return s.begin
	}
	tx := &transaction{}
	if err := work(context.WithValue(ctx, txKey{}, tx)); err != nil {
		s.rolledBack++
		return err
	}
	if s.commit != nil {
		return s.commit
	}
	s.committed++
	for _, save := range tx.saves {
		if err := save(); err != nil {
			return err
		}
	}
	return nil
}

func TestWorkAndAnswerAreCommittedTogether(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		db := &database{Store: d.records}
		d.Store = db
		answer, err := d.do(pay, kept("first"))
		d.wantBody(answer, err, "first", false, 1)
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "first", true, 1)
		if db.committed != 1 || db.rolledBack != 0 {
			t.Errorf("%d commits, %d rollbacks", db.committed, db.rolledBack)
		}
	})
}

func TestFailedWorkIsRolledBackAndItsAnswerStored(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		db := &database{Store: d.records}
		d.Store = db
		out := kept("no such account")
		out.Failed = true
		answer, err := d.do(pay, out)
		d.wantBody(answer, err, "no such account", false, 1)
		if db.committed != 0 || db.rolledBack != 1 {
			t.Errorf("%d commits, %d rollbacks", db.committed, db.rolledBack)
		}
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "no such account", true, 1)
	})
}

func TestAFailedCommitIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		db := &database{Store: d.records, commit: errFull}
		d.Store = db
		if answer, err := d.do(pay, kept("x")); !errors.Is(err, errFull) || answer.Response.Status != 0 {
			t.Errorf("%+v, %v", answer, err)
		}
		db.commit = nil
		answer, err := d.do(pay, kept("second"))
		d.wantBody(answer, err, "second", false, 2)
	})
}

func TestNothingRunsWithoutATransaction(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		d.Store = &database{Store: d.records, begin: errFull}
		if _, err := d.do(pay, kept("x")); !errors.Is(err, locker.ErrUnavailable) || d.runs != 0 {
			t.Errorf("%v, %d runs", err, d.runs)
		}
		if n := d.records.Len(); n != 0 {
			t.Errorf("%d records; want that the one in progress was removed", n)
		}
	})
}
