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

// A Client enqueues tasks with what their runs will want: the trace's context and the fences of the
// leases under which they are enqueued, in their headers; and tasks of a rule with [Unique] so that
// there is one at a time of each type and key, the very key that guards their runs. [Guard.Client]
// returns one; it is safe for concurrent use.
//
// A unique task has a [asynq.TaskID] that is made of its type and key. So it is unique in its queue
// for as long as it exists there, no more and no less: while it is scheduled, pending, running, put
// off or kept as completed. There is no lock beside it that could outlive it or be outlived, which
// is the weakness of [asynq.Unique]. A task that was archived does not stand in the way of a new
// one, if the Client has an Inspector.
type Client struct {
	guard     *Guard
	client    *asynq.Client
	inspector *asynq.Inspector
}

// Client returns a Client that enqueues through c. i may be nil; then archived tasks count as
// duplicates.
func (g *Guard) Client(c *asynq.Client, i *asynq.Inspector) *Client { return &Client{g, c, i} }

// EnqueueContext enqueues t like [asynq.Client.EnqueueContext], also with the options that t was
// made with. A duplicate of a unique task is refused with [asynq.ErrDuplicateTask].
func (c *Client) EnqueueContext(ctx context.Context, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if t == nil {
		return nil, errors.New("asynqlock: the task is nil; make one with asynq.NewTask")
	}
	own, err := optionsOf(t)
	if err != nil {
		return nil, fmt.Errorf("asynqlock: the task %s: %w", t.Type(), err)
	}
	opts = slices.Concat(own, opts) // the last one counts, as with asynq
	r := c.guard.rules.match(t.Type())
	t = asynq.NewTaskWithHeaders(t.Type(), t.Payload(), c.guard.headers(ctx, t.Headers()))
	if r != nil && r.unique {
		return c.unique(ctx, r, t, opts)
	}
	return c.client.EnqueueContext(ctx, t, opts...)
}

// isUnique says whether t has Unique from its rule.
func (c *Client) isUnique(t *asynq.Task) bool {
	r := c.guard.rules.match(t.Type())
	return r != nil && r.unique
}

// unique enqueues t unless there is a task of its type and key.
func (c *Client) unique(ctx context.Context, r *rule, t *asynq.Task, opts []asynq.Option) (*asynq.TaskInfo, error) {
	m := message{task: t, queue: "default"}
	for _, o := range opts {
		switch o.Type() {
		case asynq.QueueOpt:
			m.queue, _ = o.Value().(string)
		case asynq.UniqueOpt:
			return nil, fmt.Errorf("asynqlock: the task %s has Unique from its rule and asynq.Unique; leave the latter out: where its ID is taken, "+
				"asynq would keep it from being enqueued for the whole time given there", t.Type())
		case asynq.TaskIDOpt:
			return nil, fmt.Errorf("asynqlock: the task %s has an ID that its rule makes, because of Unique; leave asynq.TaskID out", t.Type())
		default:
		}
	}
	text, err := r.key(ctx, &m)
	if err != nil {
		return nil, fmt.Errorf("asynqlock: the task %s has no key: %w", t.Type(), err)
	}
	sum := sha256.Sum256([]byte(t.Type() + "\x00" + text))
	first := "unique-" + base64.RawURLEncoding.EncodeToString(sum[:])

	// An archived task keeps its ID. The next one has the next number, so all who enqueue then try
	// the same ID.
	id, n := first, 0
	for range mostConflicts {
		info, err := c.client.EnqueueContext(ctx, t, append(slices.Clip(opts), asynq.TaskID(id))...)
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			return info, err
		}
		if c.inspector == nil {
			return nil, duplicate(t, "there", id)
		}
		other, err := c.inspector.GetTaskInfo(m.queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound): // it has ended meanwhile
		case err != nil:
			return nil, fmt.Errorf("%w (and its state is not known: %w)", duplicate(t, "there", id), err)
		case other.State == asynq.TaskStateArchived:
			n = firstFree(n, func(n int) bool {
				other, err := c.inspector.GetTaskInfo(m.queue, numbered(first, n))
				return err == nil && other.State == asynq.TaskStateArchived
			})
			id = numbered(first, n)
		default:
			return nil, duplicate(t, other.State.String(), id)
		}
	}
	return nil, duplicate(t, "enqueued and ended by others all the time", id)
}

// mostConflicts bounds how often a task finds its ID taken by another that has ended when it looks.
const mostConflicts = 100

// numbered is the ID of the task that is enqueued while n others of its key lie in the archive.
func numbered(first string, n int) string {
	if n == 0 {
		return first
	}
	return first + "." + strconv.Itoa(n)
}

// firstFree returns a number after n, which is taken, that is not taken though the one before it
// is. There may be thousands; it asks for few of them.
func firstFree(n int, taken func(int) bool) int {
	step := 1
	for taken(n + step) {
		n += step
		step *= 2
	}
	return n + 1 + sort.Search(step-1, func(i int) bool { return !taken(n + 1 + i) })
}

func duplicate(t *asynq.Task, state, id string) error {
	return fmt.Errorf("asynqlock: a task %s with the same key is %s (%s): %w", t.Type(), state, id, asynq.ErrDuplicateTask)
}

// A Fence is a lease under which a task was enqueued.
type Fence struct {
	Key   string `json:"key"`
	Fence uint64 `json:"fence"`
}

// Fences returns the leases under which t was enqueued by a [Client], the innermost first. A
// handler hands a fence to whatever the lock protects, so that a task which was ordered by a stale
// holder does no harm.
func Fences(t *asynq.Task) []Fence {
	var fences []Fence
	if text := t.Headers()[headerFences]; text != "" {
		_ = json.Unmarshal([]byte(text), &fences) // what is no list of fences is not ours
	}
	return fences
}

// headers adds what travels with a task to its own headers.
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
		text, _ := json.Marshal(fences) // texts and numbers always marshal
		headers[headerFences] = string(text)
	}
	if g.propagator != nil {
		g.propagator.Inject(ctx, headers)
	}
	return headers
}
