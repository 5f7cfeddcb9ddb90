package asynqlock

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// A Client enqueues tasks. To the headers of each task, it adds the context of the trace, and the
// fences of the leases under which the task is enqueued. If a rule has [Unique], a Client enqueues
// a task only if no other task with this type and key exists. This key is also the key of the lock
// that guards the task's runs. [Guard.Client] returns a Client. A Client is safe for concurrent
// use.
//
// The [asynq.TaskID] of a unique task is made of the task's type and key. So the task is unique for
// exactly as long as asynq keeps it in its queue: in the states scheduled, pending, active and
// retry, and in the state completed until its Retention is over and asynq has removed it, some
// seconds later. In the state archived, it prevents a new task only if the Client has no Inspector.
// [asynq.Unique] uses a separate lock instead, which can end before or after the task.
//
// With an Inspector, a new task beside an archived one has a number in its ID. If the archived task
// is deleted before the new task has ended, the first ID is free, so a second new task can be
// enqueued. The lock of the key still runs one after the other, and [Once] drops the second.
type Client struct {
	guard     *Guard
	client    *asynq.Client
	inspector *asynq.Inspector
}

// Client returns a Client that enqueues through c. If i is nil, a new task counts as a duplicate of
// an archived task.
func (g *Guard) Client(c *asynq.Client, i *asynq.Inspector) *Client {
	return &Client{g, c, i}
}

// EnqueueContext enqueues t like [asynq.Client.EnqueueContext]. The options with which t was made
// count too. A duplicate of a unique task is refused with [asynq.ErrDuplicateTask].
func (c *Client) EnqueueContext(ctx context.Context, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	own, err := optionsOf(t)
	if err != nil {
		return nil, fmt.Errorf("asynqlock: the task %s: %w", t.Type(), err)
	}
	opts = slices.Concat(own, opts) // the last option of a kind wins, as in asynq
	r := c.guard.rules.match(t.Type())
	t = asynq.NewTaskWithHeaders(t.Type(), t.Payload(), c.guard.headers(ctx, t.Headers()))
	if r != nil && r.unique {
		return c.enqueueUnique(ctx, r, t, opts)
	}
	return c.client.EnqueueContext(ctx, t, opts...)
}

// enqueueUnique enqueues t, unless there is a task of its type and key. r is the rule of t.
func (c *Client) enqueueUnique(ctx context.Context, r *rule, t *asynq.Task, opts []asynq.Option) (*asynq.TaskInfo, error) {
	m := message{task: t, queue: "default"}
	for _, o := range opts {
		switch o.Type() {
		case asynq.QueueOpt:
			m.queue, _ = o.Value().(string)
		case asynq.UniqueOpt:
			return nil, fmt.Errorf("asynqlock: the task %s has Unique from its rule and the option asynq.Unique; remove asynq.Unique: "+
				"if the task's ID is taken, the lock of asynq.Unique would block the task until that lock expires", t.Type())
		case asynq.TaskIDOpt:
			return nil, fmt.Errorf("asynqlock: the task %s gets its ID from its rule, because of Unique; leave asynq.TaskID out", t.Type())
		default:
		}
	}
	text, err := r.key(ctx, &m)
	if err != nil {
		return nil, fmt.Errorf("asynqlock: the task %s has no key: %w", t.Type(), err)
	}
	sum := sha256.Sum256([]byte(t.Type() + "\x00" + text))
	first := "unique-" + base64.RawURLEncoding.EncodeToString(sum[:])

	// An archived task keeps its ID, so a new task gets an ID with the next number. All processes
	// that enqueue the task try the same ID.
	id, n := first, 0
	for range mostConflicts {
		info, err := c.client.EnqueueContext(ctx, t, append(slices.Clip(opts), asynq.TaskID(id))...)
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			return info, err
		}
		if c.inspector == nil {
			return nil, duplicateError(t, "there", id)
		}
		other, err := c.inspector.GetTaskInfo(m.queue, id)
		switch {
		// The other task has ended meanwhile, so its ID is free again.
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		case err != nil:
			return nil, fmt.Errorf("%w (and its state is not known: %w)", duplicateError(t, "there", id), err)
		case other.State == asynq.TaskStateArchived:
			n = firstFree(n, func(n int) bool {
				other, err := c.inspector.GetTaskInfo(m.queue, numberedID(first, n))
				return err == nil && other.State == asynq.TaskStateArchived
			})
			id = numberedID(first, n)
		default:
			return nil, duplicateError(t, other.State.String(), id)
		}
	}
	return nil, duplicateError(t, "enqueued and finished again and again", id)
}

// mostConflicts is the largest number of attempts that enqueueUnique makes. An attempt fails when
// another task has the ID. If that task ends or is archived meanwhile, enqueueUnique makes another
// attempt.
const mostConflicts = 100

// numberedID returns the ID for a new task if n tasks of its key are archived. first is the ID for
// n = 0.
func numberedID(first string, n int) string {
	if n == 0 {
		return first
	}
	return first + "." + strconv.Itoa(n)
}

// firstFree returns a number that is free and follows a taken number. isTaken reports whether a
// number is taken. n itself is taken, and the result is larger than n. There may be thousands of
// taken numbers, so firstFree checks only a few of them.
func firstFree(n int, isTaken func(int) bool) int {
	step := 1
	for isTaken(n + step) {
		n += step
		step *= 2
	}
	return n + 1 + sort.Search(step-1, func(i int) bool { return !isTaken(n + 1 + i) })
}

// duplicateError returns the error for the new task t. The existing task has this state and ID.
func duplicateError(t *asynq.Task, state, id string) error {
	return fmt.Errorf("asynqlock: a task %s with the same key is %s (%s): %w", t.Type(), state, id, asynq.ErrDuplicateTask)
}

// A Fence is a lease under which a task was enqueued.
type Fence struct {
	Key   string `json:"key"`
	Fence uint64 `json:"fence"`
}

// headerFences is the header with the leases under which a Client enqueued the task.
const headerFences = "latchkit-fences"

// Fences returns the leases under which t was enqueued by a [Client], the innermost first. A
// handler passes a fence to the resource that the lock protects. The resource can then refuse a
// task that a stale holder enqueued.
func Fences(t *asynq.Task) []Fence {
	var fences []Fence
	if text := t.Headers()[headerFences]; text != "" {
		_ = json.Unmarshal([]byte(text), &fences) // no error: an invalid text was not written by a Client
	}
	return fences
}

// headers returns the headers own of a task, together with the fences and the trace context of ctx.
func (g *Guard) headers(ctx context.Context, own map[string]string) map[string]string {
	headers := maps.Clone(own)
	if headers == nil {
		headers = make(map[string]string)
	}
	if leases := locker.LeasesFromContext(ctx); len(leases) > 0 {
		fences := make([]Fence, len(leases))
		for i, l := range leases {
			fences[i] = Fence{l.Key(), l.Fence()}
		}
		text, _ := json.Marshal(fences) // cannot fail for texts and numbers
		headers[headerFences] = string(text)
	}
	if g.propagator != nil {
		g.propagator.Inject(ctx, headers)
	}
	return headers
}
