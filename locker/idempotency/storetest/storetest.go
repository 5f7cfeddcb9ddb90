// Package storetest checks the rules that every idempotency.Store obeys. To test a Store of your
// own, give [Run] a function that makes the Store.
package storetest

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// Run checks a Store. setup returns an empty Store for each subtest. If the Store is an
// idempotency.Transactor, Run also checks the rules of its transactions.
func Run(t *testing.T, setup func(t *testing.T) idempotency.Store) {
	for name, law := range map[string]func(*testing.T, bench){
		"an unknown key has no Record":                               unknownKey,
		"a request in progress shows its fingerprint and fence":      inProgress,
		"an answer comes back as it was saved":                       comesBack,
		"an answer that was not kept leaves the mark done":           doneOnly,
		"a later run takes over from one that was interrupted":       takesOver,
		"a run with a smaller fence does not begin":                  smallerFence,
		"a different request does not begin":                         differentRequest,
		"no request begins after the answer":                         keepsAnswer,
		"a holder that was overtaken cannot save":                    overtakenRun,
		"a Save whose Record was lost writes it":                     lostRecord,
		"calls that are executed twice change nothing":               repeatedCalls,
		"only the run that has begun is forgotten":                   forgottenRecord,
		"a request without fences begins, is saved and is forgotten": withoutFences,
		"keys are separate":                                          separateKeys,
		"an ended context ends a call":                               endedContext,
		"a Record expires":                                           expiredRecord,
		"a transaction commits work and answer together":             commitTogether,
		"a transaction that fails leaves no answer":                  rollsBack,
		"a transaction of an overtaken holder fails":                 overtakenTransaction,
		"a panic rolls back, and goes on":                            panickingWork,
	} {
		t.Run(name, func(t *testing.T) { law(t, bench{t, setup(t)}) })
	}
}

const lifetime = time.Minute

var (
	request   = [32]byte{1, 2, 255}
	different = [32]byte{3}
)

func answer(body string) idempotency.Response {
	return idempotency.Response{
		Status:  201,
		Header:  map[string][]string{"Content-Type": {"application/json"}, "X-Two": {"a", "\xff\x00"}},
		Trailer: map[string][]string{"x-bin": {"\x80"}},
		Body:    []byte(body),
	}
}

func record(fence uint64, body string) idempotency.Record {
	return idempotency.Record{Fingerprint: request, Fence: fence, State: idempotency.Answered, Response: answer(body)}
}

// bench makes calls of the tested Store that must not fail.
type bench struct {
	*testing.T
	idempotency.Store
}

func (b bench) load(key string) (idempotency.Record, bool) {
	b.Helper()
	rec, found, err := b.Load(b.Context(), key)
	if err != nil {
		b.Fatalf("Load: %v", err)
	}
	return rec, found
}

func (b bench) begin(key string, fingerprint [32]byte, fence uint64) (earlier idempotency.Record, found, began bool) {
	b.Helper()
	earlier, found, began, err := b.Begin(b.Context(), key, fingerprint, fence, lifetime)
	if err != nil {
		b.Fatalf("Begin: %v", err)
	}
	return earlier, found, began
}

func (b bench) save(key string, rec idempotency.Record) {
	b.Helper()
	if err := b.Save(b.Context(), key, rec, lifetime); err != nil {
		b.Fatalf("Save: %v", err)
	}
}

func (b bench) forget(key string, fence uint64) {
	b.Helper()
	if err := b.Forget(b.Context(), key, fence); err != nil {
		b.Fatalf("Forget: %v", err)
	}
}

// checkRecord fails the test unless Load returns the Record want for key.
func (b bench) checkRecord(key string, checkRecord idempotency.Record) {
	b.Helper()
	if got, found := b.load(key); !found || !reflect.DeepEqual(got, checkRecord) {
		b.Errorf("Load: %+v, %v; want %+v", got, found, checkRecord)
	}
}

// checkNone fails the test if Load finds a Record for key.
func (b bench) checkNone(key string) {
	b.Helper()
	if got, found := b.load(key); found {
		b.Errorf("Load: %+v; want no Record", got)
	}
}

// checkBody fails the test unless the Record of key has an answer with the given body.
func (b bench) checkBody(key, body string) {
	b.Helper()
	if got, found := b.load(key); !found || got.State != idempotency.Answered || string(got.Response.Body) != body {
		b.Errorf("Load: %+v, %v; want the answer %q", got, found, body)
	}
}

func unknownKey(t *testing.T, b bench) { b.checkNone("a") }

func inProgress(t *testing.T, b bench) {
	if earlier, found, began := b.begin("a", request, 7); found || !began {
		t.Fatalf("Begin: %+v, %v, %v", earlier, found, began)
	}
	b.checkRecord("a", idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.InProgress})
}

func comesBack(t *testing.T, b bench) {
	for _, body := range []string{"", "\x00 not text \xff", string(make([]byte, 5000))} {
		rec, want := record(1<<60+7, body), record(1<<60+7, body)
		if body == "" {
			want.Response.Body, rec.Response.Body = nil, nil
		}
		key := "body " + body[:min(3, len(body))]
		b.begin(key, request, rec.Fence)
		b.save(key, rec)
		rec.Response.Header["X-Two"][0] = "changed" // the caller may use its memory again
		if len(rec.Response.Body) > 0 {
			rec.Response.Body[0] = 'x'
		}
		for range 2 {
			got, found := b.load(key)
			if !found || !reflect.DeepEqual(got, want) {
				t.Fatalf("Load: %+v, %v; want %+v", got, found, want)
			}
			got.Response.Header["X-Two"][0] = "changed" // the caller may change what Load returned
		}
	}
}

func doneOnly(t *testing.T, b bench) {
	b.begin("a", request, 7)
	want := idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.DoneOnly}
	b.save("a", want)
	b.checkRecord("a", want)
}

func takesOver(t *testing.T, b bench) {
	b.begin("a", request, 7)
	earlier, found, began := b.begin("a", request, 8)
	if !found || !began || earlier.Fence != 7 || earlier.State != idempotency.InProgress {
		t.Errorf("Begin: %+v, %v, %v; want the Record of fence 7, which was replaced", earlier, found, began)
	}
	b.save("a", record(8, "of the later run"))
	b.checkBody("a", "of the later run")
}

func smallerFence(t *testing.T, b bench) {
	b.begin("a", request, 1<<60)
	earlier, found, began := b.begin("a", request, 1<<60-1)
	if !found || began || earlier.Fence != 1<<60 {
		t.Errorf("Begin: %+v, %v, %v; want the Record of the larger fence", earlier, found, began)
	}
	b.checkRecord("a", idempotency.Record{Fingerprint: request, Fence: 1 << 60, State: idempotency.InProgress})
}

func differentRequest(t *testing.T, b bench) {
	b.begin("a", request, 7)
	earlier, found, began := b.begin("a", different, 8)
	if !found || began || earlier.Fingerprint != request {
		t.Errorf("Begin: %+v, %v, %v; want the Record of the first request", earlier, found, began)
	}
	b.save("a", record(7, "of the first request"))
	b.checkBody("a", "of the first request")
}

func keepsAnswer(t *testing.T, b bench) {
	b.begin("a", request, 7)
	b.save("a", record(7, "first"))
	earlier, found, began := b.begin("a", request, 8)
	if !found || began || !reflect.DeepEqual(earlier, record(7, "first")) {
		t.Errorf("Begin: %+v, %v, %v; want the answer", earlier, found, began)
	}
	b.checkBody("a", "first")
}

func overtakenRun(t *testing.T, b bench) {
	b.begin("a", request, 7)
	b.begin("a", request, 8)
	for range 2 { // both before and after the later run has stored its answer
		err := b.Save(b.Context(), "a", record(7, "late"), lifetime)
		if !errors.Is(err, idempotency.ErrOvertaken) || !errors.Is(err, locker.ErrLost) {
			t.Errorf("Save: %v; want ErrOvertaken", err)
		}
		b.save("a", record(8, "of the later run"))
	}
	b.checkBody("a", "of the later run")
}

func lostRecord(t *testing.T, b bench) {
	b.save("a", record(7, "without a Record before"))
	b.checkBody("a", "without a Record before")
	if _, found, began := b.begin("a", request, 8); !found || began {
		t.Errorf("Begin: %v, %v; want the answer", found, began)
	}
	done := idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.DoneOnly}
	b.save("b", done)
	b.checkRecord("b", done)
}

func repeatedCalls(t *testing.T, b bench) {
	for range 2 {
		if _, _, began := b.begin("a", request, 7); !began {
			t.Error("Begin: a second execution has not begun")
		}
	}
	for range 2 {
		b.save("a", record(7, "first"))
	}
	if _, found, began := b.begin("a", request, 7); !found || began {
		t.Error("Begin: a late execution has begun again")
	}
	b.checkBody("a", "first")
	for range 2 {
		b.forget("a", 7)
	}
	b.checkBody("a", "first")
}

func forgottenRecord(t *testing.T, b bench) {
	b.forget("a", 7)
	b.begin("a", request, 7)
	b.forget("a", 6)
	b.checkRecord("a", idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.InProgress})
	b.forget("a", 7)
	b.checkNone("a")
	if _, found, began := b.begin("a", different, 8); found || !began {
		t.Errorf("Begin: %v, %v; want a beginning without a Record before", found, began)
	}
}

func withoutFences(t *testing.T, b bench) {
	b.begin("a", request, 0)
	if _, found, began := b.begin("a", request, 0); !found || !began {
		t.Errorf("Begin: %v, %v; want that a later run takes over", found, began)
	}
	b.forget("a", 0)
	b.checkNone("a")
	b.begin("a", request, 0)
	b.save("a", record(0, "x"))
	b.checkBody("a", "x")
	b.forget("a", 0)
	b.checkBody("a", "x")
}

func separateKeys(t *testing.T, b bench) {
	b.begin("a", request, 7)
	b.checkNone("A")
	b.checkNone("a ")
	b.begin("b", different, 3)
	b.checkRecord("a", idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.InProgress})
}

func endedContext(t *testing.T, b bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	_, _, load := b.Load(ctx, "a")
	_, _, _, begin := b.Begin(ctx, "a", request, 7, lifetime)
	save := b.Save(ctx, "a", record(7, "x"), lifetime)
	forget := b.Forget(ctx, "a", 7)
	for name, err := range map[string]error{"Load": load, "Begin": begin, "Save": save, "Forget": forget} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v; want context.Canceled", name, err)
		}
	}
}

func expiredRecord(t *testing.T, b bench) {
	const short = 50 * time.Millisecond
	gone := func(key string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, found := b.load(key); !found {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the Record %q of %v is there after 10s", key, short)
			}
		}
		if _, found, began := b.begin(key, different, 3); found || !began {
			t.Errorf("Begin: %v, %v; want a beginning without a Record before", found, began)
		}
	}
	if _, _, _, err := b.Begin(b.Context(), "a", request, 7, short); err != nil {
		t.Fatal(err)
	}
	gone("a")
	b.begin("b", request, 7)
	if err := b.Save(b.Context(), "b", record(7, "x"), short); err != nil {
		t.Fatal(err)
	}
	gone("b")
}

var errWork = errors.New("the work failed")

// transactor returns the Store as a Transactor. If the Store is not a Transactor, the subtest
// ends.
func (b bench) transactor() (idempotency.Transactor, bool) {
	tr, ok := b.Store.(idempotency.Transactor)
	return tr, ok
}

func commitTogether(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return // the rules below concern only a Transactor
	}
	b.begin("a", request, 7)
	err := tr.Transact(b.Context(), func(ctx context.Context) error {
		return tr.Save(ctx, "a", record(7, "committed"), lifetime)
	})
	if err != nil {
		t.Fatalf("Transact: %v", err)
	}
	b.checkBody("a", "committed")
}

func rollsBack(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return
	}
	b.begin("a", request, 7)
	err := tr.Transact(b.Context(), func(ctx context.Context) error {
		if err := tr.Save(ctx, "a", record(7, "rolled back"), lifetime); err != nil {
			return err
		}
		return errWork
	})
	if err != errWork {
		t.Errorf("Transact: %v; want the error of the work, unchanged", err)
	}
	b.checkRecord("a", idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.InProgress})
	b.save("a", record(7, "saved by itself"))
	b.checkBody("a", "saved by itself")
}

func overtakenTransaction(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return
	}
	b.begin("a", request, 7)
	b.begin("a", request, 8)
	err := tr.Transact(b.Context(), func(ctx context.Context) error {
		return tr.Save(ctx, "a", record(7, "late"), lifetime)
	})
	if !errors.Is(err, idempotency.ErrOvertaken) {
		t.Errorf("Transact: %v; want ErrOvertaken", err)
	}
	b.checkRecord("a", idempotency.Record{Fingerprint: request, Fence: 8, State: idempotency.InProgress})
}

func panickingWork(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return
	}
	b.begin("a", request, 7)
	func() {
		defer func() {
			if r := recover(); r != "of the work" {
				t.Errorf("recovered %v; want the panic of the work", r)
			}
		}()
		_ = tr.Transact(b.Context(), func(ctx context.Context) error {
			if err := tr.Save(ctx, "a", record(7, "rolled back"), lifetime); err != nil {
				t.Errorf("Save: %v", err)
			}
			panic("of the work")
		})
	}()
	b.checkRecord("a", idempotency.Record{Fingerprint: request, Fence: 7, State: idempotency.InProgress})
}
