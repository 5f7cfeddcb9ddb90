package asynqlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/redistest"
)

// 400 tasks of one key lie among 1 000 tasks of other keys, in two queues that two servers work
// off. The tasks of the one key run one at a time, and the others do not wait for them.
func TestABacklogOfAHotKeyHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	queue := fmt.Sprint("backlog", runs.Add(1))
	const hotTasks, others, all = 400, 1000, 1400
	client := asynq.NewClientFromRedisClient(c)
	for n := range all {
		account, to := 42, queue
		if n*hotTasks/all == (n+1)*hotTasks/all {
			account = 1000 + n
		}
		if n%2 == 1 {
			to += "-low"
		}
		if _, err := client.EnqueueContext(t.Context(), asynq.NewTask("report", fmt.Appendf(nil, `{"account":%d,"n":%d}`, account, n)), asynq.Queue(to)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for range 2 {
		hot.Start(t, redistest.Shared(t).Addr(), queue, "5ms").Expect(t, "ready")
	}
	var othersTook time.Duration
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		hotEnds, otherEnds, inside := 0, 0, false
		for _, note := range notes(t, c, queue) {
			switch {
			case note.account != 42 && note.what == "end":
				otherEnds++
			case note.account != 42:
			case note.what == "begin" && inside:
				t.Fatalf("task %d of the hot key began beside another one", note.n)
			case note.what == "begin":
				inside = true
			default:
				inside = false
				hotEnds++
			}
		}
		if otherEnds == others && othersTook == 0 {
			othersTook = time.Since(began)
		}
		if hotEnds == hotTasks && otherEnds == others {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d tasks of the hot key and %d of %d others have ended", hotEnds, hotTasks, otherEnds, others)
		}
	}
	took := time.Since(began)
	t.Logf("%d tasks of other keys took %v, %d tasks of 5 ms with one key took %v", others, othersTook, hotTasks, took)
	if othersTook > took/2 {
		t.Errorf("the tasks of other keys took %v, and all tasks %v", othersTook, took)
	}
}
