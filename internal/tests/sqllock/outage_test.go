package sqllock_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

// requests is an Observer that records the results of requests.
type requests struct {
	lockertest.Recorder
	results []string
}

func (r *requests) Request(_ context.Context, e locker.RequestEvent) {
	r.results = append(r.results, e.Result)
}

// While the database does not answer, the reply, the log and the metric name the store of answers,
// and not the lock server. A client that repeats its request with the same key is charged once,
// whatever became of the first COMMIT.
func TestAnOutageOfTheDatabaseIsNotReportedAsOneOfTheLockServer(t *testing.T) {
	for name, tc := range map[string]struct {
		word   string
		strike chaos.Strike
		runs   int
	}{
		"before the work":             {"LATCHKIT_ANSWER", chaos.CutRequest, 1},
		"the COMMIT did not arrive":   {"COMMIT", chaos.CutRequest, 2},
		"the COMMIT was not answered": {"COMMIT", chaos.CutAnswer, 1},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				far, w := overWire(t, db)
				var counted requests
				l, _ := memory(t, locker.WithObserver(&counted))
				answers, err := sqllock.NewAnswers(handle(t, nil, far.DB, sqllock.WithAnswerWithin(2*time.Second)))
				if err != nil {
					t.Fatal(err)
				}
				var told []*httplock.Problem
				runs, down := 0, true
				strike := func() {
					if down {
						w.StrikeAt(tc.word, tc.strike, true)
						down = false
					}
				}
				door := httplock.MustIdempotency(l, answers, "shop", httplock.WithObserve(func(_ *http.Request, p *httplock.Problem) { told = append(told, p) }))(
					http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						runs++
						strike()
						tx, _ := sqllock.TxFromContext(r.Context())
						if err := deposit(10)(r.Context(), tx); err != nil {
							t.Error(err)
						}
						rw.WriteHeader(http.StatusCreated)
					}))
				if tc.word == "LATCHKIT_ANSWER" {
					strike()
				}
				first := charge(door, "k")
				if first.Code != http.StatusServiceUnavailable || !strings.Contains(first.Body.String(), `"answers-unavailable"`) || first.Header().Get("Retry-After") == "" {
					t.Errorf("the first request got %d %v %s", first.Code, first.Header(), first.Body)
				}
				if len(told) != 1 || !told[0].Failure() || !strings.HasPrefix(told[0].Error(), "answers-unavailable: ") || strings.Contains(told[0].Error(), "lock server") {
					t.Errorf("the log has %v", told)
				}
				if !slices.Contains(counted.results, "answers_unavailable") || slices.Contains(counted.results, "lock_unavailable") {
					t.Errorf("the metric counts %v", counted.results)
				}
				w.Revive()
				if again := charge(door, "k"); again.Code != http.StatusCreated || runs != tc.runs {
					t.Errorf("the second request got %d %s, and the work ran %d times, want %d", again.Code, again.Body, runs, tc.runs)
				}
				db.checkBalance(t, 110)
				if w.Struck() != 1 {
					t.Errorf("%d statements were struck", w.Struck())
				}
			}, postgres, maria)
		})
	}
}
