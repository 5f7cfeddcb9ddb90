package idempotency_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// desk is a Keeper whose Stores are in memory. Use a desk inside a testing/synctest bubble.
type desk struct {
	*testing.T
	idempotency.Keeper
	locks   *lockertest.Memory
	records idempotency.Store
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

var pay = idempotency.Request{Rule: locker.Rule{Key: "idempotency:acme:k1"}, Content: [][]byte{[]byte("10 EUR")}}

// record returns the Record of pay.
func (d *desk) record() idempotency.Record {
	d.Helper()
	rec, err := d.records.Load(d.Context(), pay.Rule.Key)
	if err != nil {
		d.Error(err)
	}
	return rec
}

// begin replaces the Record of pay by that of another run, which is in progress.
func (d *desk) begin(fence uint64) {
	d.Helper()
	begun := idempotency.Record{Run: idempotency.NewName(idempotency.Fingerprint(pay.Content), fence), Open: true}
	now, err := d.records.Swap(context.Background(), pay.Rule.Key, d.record(), begun, time.Hour)
	if err != nil || now.Run != begun.Run {
		d.Fatal(now, err)
	}
}

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
		time.Sleep(24 * time.Hour) //nolint:forbidigo // a bubble
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
		if r := d.record(); !r.Open {
			t.Errorf("%+v: the answer is stored, although the lease was lost", r)
		}
	})
}

func TestADifferentRequestIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		different := idempotency.Request{Rule: pay.Rule, Content: [][]byte{[]byte("10 EU"), []byte("R")}}
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
		if r := d.record(); err != nil || answer.Response.Status != 502 || r.Run != "" {
			t.Errorf("%+v, %v, %+v", answer, err, r)
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
		if r := d.record(); r.Run != "" {
			t.Errorf("%+v", r)
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
			if d := time.Since(left); context.Cause(ctx) != idempotency.ErrUnfinished || d != time.Minute {
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
		if rec := d.record(); !rec.Open {
			t.Errorf("%+v; want the Record in progress", rec)
		}
	})
}

func TestALaterRunKnowsOfAnInterruptedOne(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		d.begin(7) // as if a process had died during its work
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

// If a later holder has begun the same request, the earlier holder must not answer, even if its own
// lease still looks valid.
func TestAnOvertakenHolderHasNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		answer, err := d.Do(t.Context(), pay, func(context.Context) idempotency.Outcome {
			d.begin(1 << 62)
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

// answer replaces the Record of pay by the answer of another run.
func (d *desk) answer(body string) {
	d.Helper()
	done := idempotency.Record{
		Run:    idempotency.NewName(idempotency.Fingerprint(pay.Content), 7),
		Answer: idempotency.Encode(idempotency.Response{Status: 201, Body: []byte(body)}),
	}
	if _, err := d.records.Swap(context.Background(), pay.Rule.Key, d.record(), done, time.Hour); err != nil {
		d.Error(err)
	}
}

var errFull = errors.New("OOM command not allowed")

// A waiter has looked up the request before it got the lock. In the meantime, the holder may have
// answered, failed, or died.
func TestAWaiterLooksAgainUnderTheLock(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile   func(d *desk)
		want        string
		interrupted bool
	}{
		"answered": {func(d *desk) { d.answer("first") }, "first", false},
		"failed":   {func(*desk) {}, "second", false},
		"died":     {func(d *desk) { d.begin(7) }, "second", true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *desk) {
				lease, err := d.Locker.Acquire(t.Context(), pay.Rule)
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Second, func() {
					tc.meanwhile(d)
					_ = lease.Release(context.Background())
				})
				answer, err := d.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
					a, _ := idempotency.FromContext(ctx)
					if _, interrupted := a.Interrupted(); interrupted != tc.interrupted {
						t.Errorf("interrupted: %v", interrupted)
					}
					return kept("second")
				})
				if err != nil || string(answer.Response.Body) != tc.want {
					t.Errorf("%q, %v; want %q", answer.Response.Body, err, tc.want)
				}
			})
		})
	}
}

func TestForeignDataIsNotReadAsAnAnswer(t *testing.T) {
	name := idempotency.NewName(idempotency.Fingerprint(pay.Content), 7)
	for what, rec := range map[string]idempotency.Record{
		"a short name":            {Run: "x"},
		"another version":         {Run: name, Answer: []byte("9abc")},
		"a response that was cut": {Run: name, Answer: []byte("1\xc9\x01\x05\x05Cont")},
		"what cannot be inflated": {Run: name, Answer: []byte("2\xff\xff\xff")},
	} {
		bubble(t, func(t *testing.T, d *desk) {
			if _, err := d.records.Swap(t.Context(), pay.Rule.Key, idempotency.Record{}, rec, time.Hour); err != nil {
				t.Fatal(err)
			}
			_, err := d.do(pay, kept("x"))
			want := locker.ErrUnavailable
			if rec.Run == name { // the same request, so its work is done
				want = locker.ErrDone
			}
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "in an unknown format") || d.runs != 0 {
				t.Errorf("%s: %v, %d runs", what, err, d.runs)
			}
			if (&breaker.Breaker{}).Permits(t.Context(), err) {
				t.Errorf("%s: an adapter would run the work without a lock", what)
			}
		})
	}
}

func TestAnAnswerComesBackAsItWasSaved(t *testing.T) {
	for _, body := range []string{"", "\x00 not text \xff", string(make([]byte, 5000)), strings.Repeat("text ", 1000)} {
		want := idempotency.Response{
			Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}, "X-Two": {"a", "\xff\x00"}},
		}
		if body != "" {
			want.Body = []byte(body)
		}
		if got, ok := idempotency.Decode(idempotency.Encode(want)); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v; want %+v", got, ok, want)
		}
	}
}

func TestAnOperatorRemovesARecord(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		_, _ = d.do(pay, kept("first"))
		for range 2 {
			if err := idempotency.Remove(t.Context(), d.records, pay.Rule.Key); err != nil {
				t.Error(err)
			}
		}
		answer, err := d.do(pay, kept("second"))
		d.wantBody(answer, err, "second", false, 2)
		d.Store = failing{Store: d.records, load: errFull}
		if err := idempotency.Remove(t.Context(), d.Store, pay.Rule.Key); !errors.Is(err, errFull) {
			t.Error(err)
		}
	})
}

// A request runs once, also when the program's Locker or rule would let several holders share a
// key: a semaphore of three, a rule with a Limit, readers. While the work runs, the same request is
// busy and does not run a second time.
func TestARequestRunsOnceOnLocksWithSeveralHolders(t *testing.T) {
	t.Parallel()
	permits, err := locker.NewSemaphore(redistest.Shared(t).Client(t), 3, locker.WithPrefix(rand.Text()+":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = permits.Close(context.Background()) })
	memory := lockertest.NewLocker(t, lockertest.NewMemory())
	for name, tc := range map[string]struct {
		l    locker.Locker
		rule locker.Rule
	}{
		"a semaphore":         {permits, locker.Rule{}},
		"a rule with a Limit": {memory, locker.Rule{Limit: 3}},
		"readers":             {memory, locker.Rule{Mode: locker.Shared}},
	} {
		req := pay
		req.Rule = tc.rule
		req.Rule.Key, req.Rule.Wait = "idempotency:"+name, locker.NoWait
		k, runs := idempotency.Keeper{Locker: tc.l, Store: idempotency.NewMemory()}, 0
		answer, err := k.Do(t.Context(), req, func(context.Context) idempotency.Outcome {
			runs++
			_, err := k.Do(t.Context(), req, func(context.Context) idempotency.Outcome { runs++; return kept("second") })
			if !errors.Is(err, locker.ErrBusy) {
				t.Errorf("%s: the same request during the work: %v, want ErrBusy", name, err)
			}
			return kept("first")
		})
		if err != nil || string(answer.Response.Body) != "first" || runs != 1 {
			t.Errorf("%s: %q after %d runs, %v", name, answer.Response.Body, runs, err)
		}
	}
}

// Under the lease of a request, RunAll waits for every key, also for one that sorts before the key
// of the request. Nobody waits for the lease of a request while holding another one.
func TestARequestWaitsForKeysThatSortBeforeItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		holder, err := d.Locker.Acquire(t.Context(), locker.Rule{Key: "article:pen"})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // in a bubble
			_ = holder.Release(context.WithoutCancel(t.Context()))
		}()
		articles := []locker.Rule{{Key: "article:book", Wait: time.Second}, {Key: "article:pen", Wait: time.Second}}
		_, err = d.Do(t.Context(), pay, func(ctx context.Context) idempotency.Outcome {
			if err := locker.RunAll(ctx, d.Locker, articles, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
			return kept("paid")
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// On a Locker of NewStriped, the lease of a request is the lease of other keys too. So RunAll waits
// under it in the order of the stripes only: two requests must not wait for each other.
func TestRequestsOnStripesDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		stripes, err := locker.NewStriped(d.Locker, 2)
		if err != nil {
			t.Fatal(err)
		}
		keyOn := func(stripe uint64, name string) string { // as NewStriped documents it
			for n := 0; ; n++ {
				key, h := fmt.Sprint(name, n), fnv.New64a()
				h.Write([]byte(key))
				if h.Sum64()%2 == stripe {
					return key
				}
			}
		}
		keeper := idempotency.Keeper{Locker: stripes, Store: d.records}
		ended := make(chan error, 2)
		for stripe := range uint64(2) {
			go func() {
				req := idempotency.Request{Rule: locker.Rule{Key: keyOn(stripe, "request")}}
				_, err := keeper.Do(t.Context(), req, func(ctx context.Context) idempotency.Outcome {
					<-time.After(time.Second) // now both requests hold their stripes
					other := []locker.Rule{{Key: keyOn(1-stripe, "account")}}
					err := locker.RunAll(ctx, stripes, other, func(context.Context) error { return nil })
					if err != nil && !errors.Is(err, locker.ErrBusy) {
						t.Error(err)
					}
					return kept("paid")
				})
				ended <- err
			}()
		}
		for range 2 {
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the requests wait for each other")
			}
		}
	})
}

// After a pause, no look at the context of the work says that it is alive. Here the clock of the
// bubble jumps to the end of the lease, and the work runs before or after the goroutine that ends
// the context.
func TestALookAtTheWorksContextEndsARunWhoseTimeIsOver(t *testing.T) {
	for name, look := range locktest.Looks {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *desk) {
				d.Locker = lockertest.NewLocker(t, d.locks, locker.WithoutRenewal())
				for n := range 50 {
					_, _ = d.Do(t.Context(), idempotency.Request{Rule: locker.Rule{Key: fmt.Sprint(n), TTL: time.Second}}, func(ctx context.Context) idempotency.Outcome {
						attempt, _ := idempotency.FromContext(ctx)
						time.Sleep(time.Until(attempt.Lease().Expires())) //nolint:forbidigo // a bubble
						if !look(ctx) {
							t.Error("the context says that the key is held")
						}
						return idempotency.Outcome{}
					})
				}
			})
		})
	}
}
