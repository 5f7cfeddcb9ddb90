package locker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestTheObserverHearsEveryOutcome(t *testing.T) {
	rule := locker.Rule{Key: "order:1", TTL: 3 * time.Second}
	held := func(t *testing.T, l *locker.Engine, m *lockertest.Memory) { m.Occupy("order:1", 0) }
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, l *locker.Engine, m *lockertest.Memory)
		rule    locker.Rule
		timeout time.Duration // the time-out of the caller's context
		during  func(m *lockertest.Memory)
		want    map[locker.Op]locker.Result
	}{
		"acquired and released": {want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultAcquired, locker.OpHold: locker.ResultReleased, locker.OpRelease: locker.ResultReleased}},
		"busy":                  {prepare: held, rule: locker.Rule{Wait: locker.NoWait}, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultBusy}},
		"timeout of Wait":       {prepare: held, rule: locker.Rule{Wait: time.Second}, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultTimeout}},
		"timeout of ctx":        {prepare: held, timeout: time.Second, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultTimeout}},
		"unavailable": {prepare: func(_ *testing.T, _ *locker.Engine, m *lockertest.Memory) {
			m.Fail(locker.OpAcquire, errors.New("EOF"))
		},
			want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultUnavailable}},
		"error": {prepare: func(_ *testing.T, _ *locker.Engine, m *lockertest.Memory) {
			m.Fail(locker.OpAcquire, &store.Refusal{Err: locker.ErrUnsupported})
		}, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultError}},
		"lost":    {during: func(m *lockertest.Memory) { m.Steal("order:1") }, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultAcquired, locker.OpHold: locker.ResultLost, locker.OpRelease: locker.ResultLost}},
		"expired": {rule: locker.Rule{EndAfter: time.Second}, during: func(*lockertest.Memory) {}, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultAcquired, locker.OpHold: locker.ResultExpired, locker.OpRelease: locker.ResultExpired}},
		"revoked": {during: func(m *lockertest.Memory) {
			i, _ := m.Inspect(context.Background(), "order:1")
			_, _ = m.Revoke(context.Background(), "order:1", i.Fence, "drill")
		}, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultAcquired, locker.OpHold: locker.ResultRevoked, locker.OpRelease: locker.ResultRevoked}},
		"done": {rule: locker.Rule{OnceFor: time.Hour}, prepare: func(t *testing.T, l *locker.Engine, _ *lockertest.Memory) {
			if err := locker.Run(t.Context(), l, locker.Rule{Key: "order:1", OnceFor: time.Hour}, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		}, want: map[locker.Op]locker.Result{locker.OpAcquire: locker.ResultDone}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				if tc.prepare != nil {
					tc.prepare(t, lockertest.NewLocker(t, store), store)
				}
				var rec lockertest.Recorder
				l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
				r := rule
				r.Wait, r.Mode, r.EndAfter, r.OnceFor = tc.rule.Wait, tc.rule.Mode, tc.rule.EndAfter, tc.rule.OnceFor
				ctx := t.Context()
				if tc.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.timeout)
					defer cancel()
				}
				_ = locker.Run(ctx, l, r, func(ctx context.Context) error {
					if tc.during != nil {
						tc.during(store)
						<-ctx.Done()
					}
					return nil
				})
				got := map[locker.Op]locker.Result{}
				for _, record := range rec.Records() {
					got[record.Op] = record.Outcome.Result
					if record.Rule.Name != "order" || record.Rule.TTL != 3*time.Second {
						t.Errorf("the rule is not complete: %+v", record.Rule)
					}
					if ok := record.Outcome.Err == nil; ok != (record.Outcome.Result == locker.ResultAcquired || record.Outcome.Result == locker.ResultReleased) {
						t.Errorf("%v: %v with error %v", record.Op, record.Outcome.Result, record.Outcome.Err)
					}
				}
				for op, want := range tc.want {
					if got[op] != want || rec.Begun(op) != 1 {
						t.Errorf("%v: %q (begun %d times), want %q", op, got[op], rec.Begun(op), want)
					}
				}
				if len(got) != len(tc.want) {
					t.Errorf("%v, want %v", got, tc.want)
				}
			})
		})
	}
}

func TestAnUnansweredReleaseEndsTheHoldInTheOrdinaryWay(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var rec lockertest.Recorder
		l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		store.Fail(locker.OpRelease, errors.New("EOF"))
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrUnavailable)
		if got := rec.Records(locker.OpHold); len(got) != 1 || got[0].Outcome.Result != locker.ResultReleased || got[0].Outcome.Err != nil {
			t.Fatalf("%+v", got)
		}
		if got := rec.Records(locker.OpRelease); len(got) != 1 || got[0].Outcome.Result != locker.ResultUnavailable {
			t.Fatalf("%+v", got)
		}
		store.Fail(locker.OpRelease, nil)
	})
}

func TestALossIsALossWhateverFailedBefore(t *testing.T) {
	for _, failure := range []error{context.Canceled, locker.ErrUnavailable, locker.ErrBusy} {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			var rec lockertest.Recorder
			l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
			lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			store.Fail(locker.OpRenew, failure)
			lost(t, lease, locker.ErrLost)
			_ = lease.Release(t.Context())
			for _, r := range rec.Records(locker.OpHold, locker.OpRelease) {
				if r.Outcome.Result != locker.ResultLost {
					t.Errorf("%v: %v after %v", r.Op, r.Outcome.Result, failure)
				}
			}
		})
	}
}

func TestEveryBeginEnds(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var rec lockertest.Recorder
		l, err := locktest.NewEngine(store, locker.WithObserver(&rec))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				_ = locker.Run(t.Context(), l, locker.Rule{Key: string(rune('a' + i%20)), Wait: time.Second}, func(context.Context) error {
					time.Sleep(time.Duration(i) * time.Millisecond)
					return nil
				})
			})
		}
		time.Sleep(150 * time.Millisecond)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		for _, op := range []locker.Op{locker.OpAcquire, locker.OpHold, locker.OpRelease} {
			if begun, ended := rec.Begun(op), len(rec.Records(op)); begun != ended || begun == 0 {
				t.Errorf("%v: %d begun, %d ended", op, begun, ended)
			}
		}
	})
}

func TestMetadataIsCutAndShownToWhoWaits(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var rec lockertest.Recorder
		l := lockertest.NewLocker(t, store, locker.WithObserver(&rec), locker.WithMetadata(func(ctx context.Context) string {
			return strings.Repeat(ctx.Value(valueKey{}).(string), 300)
		}))
		lease, err := l.Acquire(context.WithValue(t.Context(), valueKey{}, "x"), locker.Rule{Key: "a"})
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, lease)
		_, _ = l.Acquire(context.WithValue(t.Context(), valueKey{}, "y"), locker.Rule{Key: "a", Wait: locker.NoWait})
		records := rec.Records(locker.OpAcquire)
		if got := records[1].Outcome.HolderMetadata; got != strings.Repeat("x", 256) {
			t.Fatalf("%d bytes %q", len(got), got)
		}
	})
}

func TestMetadataOfARuleTakesThePlaceOfTheLockers(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithMetadata(func(context.Context) string { return "the process" }))
		lease := acquire(t, l, locker.Rule{Key: "a", Metadata: "the task"})
		info, err := l.Inspect(t.Context(), "a")
		if err != nil || info.Metadata != "the task" {
			t.Errorf("Inspect shows the metadata %q, %v", info.Metadata, err)
		}
		_, err = l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		if e, ok := errors.AsType[*locker.Error](err); !ok || e.HolderMetadata != "the task" {
			t.Errorf("the refused caller sees the metadata %+v", err)
		}
		// The lease has metadata of its own, which names its holder. So no waiter of this process
		// may take the lease over.
		next := make(chan *locker.Lease, 1)
		go func() { next <- acquire(t, l, locker.Rule{Key: "a", Metadata: "another task"}) }()
		synctest.Wait()
		release(t, lease)
		second := <-next
		defer release(t, second)
		if info, err := l.Inspect(t.Context(), "a"); err != nil || info.Metadata != "another task" {
			t.Errorf("Inspect shows the metadata %q of the second holder, %v", info.Metadata, err)
		}
	})
}

func TestNamesComeFromTheKeysFirstPart(t *testing.T) {
	for key, want := range map[string]string{"order:42": "order", "order": "lock", ":42": "lock", "a:b:c": "a"} {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			var rec lockertest.Recorder
			l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
			release(t, acquire(t, l, locker.Rule{Key: key}))
			release(t, acquire(t, l, locker.Rule{Key: key, Name: "mine"}))
			if got := rec.Records(locker.OpAcquire); got[0].Rule.Name != want || got[1].Rule.Name != "mine" {
				t.Errorf("%q is named %q", key, got[0].Rule.Name)
			}
		})
	}
}

// warning is a Store whose server has an unsafe setting.
type warning struct{ *lockertest.Process }

func (w warning) Capabilities() store.Capabilities {
	can := w.Process.Capabilities()
	can.CheckServer = func(context.Context) []store.Warning {
		return []store.Warning{{Code: "test", Text: "a setting that only this test has"}}
	}
	return can
}

// A process may have many Lockers on one server. One line of its log tells all.
func TestAWarningIsLoggedOnceAProcess(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			l := lockertest.NewLocker(t, warning{lockertest.NewMemory().NewProcess()})
			lease, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if n := strings.Count(log.String(), "a setting that only this test has"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
